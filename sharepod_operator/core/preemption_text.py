"""Why nobody is evicted for a pod, in words, as kube-scheduler appends them to its refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharepod_operator.core.preemption import Helpless, Patience

if TYPE_CHECKING:
    from sharepod_operator.core.preemption import Answer


def why_nobody(answer: Answer, *, gpu: bool) -> str:
    """One sentence with counts, of GPUs for a pod that asks for some, else of nodes; "" where there is nothing to say."""
    match answer:
        case Patience(placed=placed, leaving=leaving):
            count = len(leaving)
            return f"not needed, {count} pod{' is' if count == 1 else 's are'} leaving node {placed.node}."
        case Helpless(sentence=sentence) if sentence:
            return sentence
        case Helpless(reasons=reasons, total=total):
            counted = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
            return f"0/{total} {'GPUs can be freed' if gpu else 'nodes are available'}: {counted}." if counted else ""
    return ""
