"""Whether what is bound keeps the rules that hold always, judged from the pods alone.

Decisions never break them. A second operator that wrote after it had lost its Lease could: the Lease stops it from
sending, not a write that is already on its way. So the rules are checked against what the API server holds, and
where two pods can't both stay, the one that was bound last is named.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sharepod_operator.core.model import MILLI_PER_GPU, Allocation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Holding:
    """One bound pod: where it sits, and since when, for the order in which pods came."""

    uid: str
    key: str
    node: str
    allocation: Allocation
    bound_at: str


@dataclass(frozen=True, slots=True)
class Violation:
    """A pod that can't stay beside those bound before it, and the sentence that says why."""

    uid: str
    sentence: str


@dataclass(slots=True)
class _Card:
    milli: int = 0
    memory: int = 0
    size: int = 0
    exclusions: set[str] = field(default_factory=set)
    anti_affinities: set[str] = field(default_factory=set)


def violations(holdings: Iterable[Holding]) -> list[Violation]:
    """The pods that break a rule beside older ones.

    The rules: shares and memory of a GPU within its size, one exclusion tag on a GPU, an anti-affinity tag once on a
    GPU, a virtual GPU's name on one GPU of its node, a port once on a node. Memory is judged by the card's size as the
    ledger entries noted it, so that a smaller inventory written later costs no running pod its place.
    """
    cards: dict[tuple[str, str], _Card] = defaultdict(_Card)
    ports: dict[tuple[str, int], str] = {}
    virtual: dict[tuple[str, str], str] = {}
    found = []
    for holding in sorted(holdings, key=lambda one: (one.bound_at, one.uid)):
        sentence = _conflict(holding, cards, ports, virtual)
        if sentence:
            found.append(Violation(holding.uid, sentence))
            continue
        allocation = holding.allocation
        if allocation.port:
            ports[holding.node, allocation.port] = holding.key
        if allocation.virtual_id:
            virtual[holding.node, allocation.virtual_id] = allocation.charges[0].uuid
        for charge in allocation.charges:
            card = cards[holding.node, charge.uuid]
            card.milli += charge.milli
            card.memory += charge.memory
            card.size = max(card.size, charge.card_memory)
            card.exclusions.add(allocation.exclusion)
            if allocation.anti_affinity:
                card.anti_affinities.add(allocation.anti_affinity)
    return found


def _conflict(
    holding: Holding,
    cards: Mapping[tuple[str, str], _Card],
    ports: Mapping[tuple[str, int], str],
    virtual: Mapping[tuple[str, str], str],
) -> str:
    allocation = holding.allocation
    owner = ports.get((holding.node, allocation.port))
    if allocation.port and owner:
        return f"port {allocation.port} of node {holding.node} belongs to {owner}"
    known = virtual.get((holding.node, allocation.virtual_id))
    if allocation.virtual_id and known and known != allocation.charges[0].uuid:
        return f"virtual GPU {allocation.virtual_id} of node {holding.node} is {known}"
    for charge in allocation.charges:
        card = cards.get((holding.node, charge.uuid), _Card())
        if charge.milli and card.milli + charge.milli > MILLI_PER_GPU:
            return f"the share of {charge.uuid} is used up by older pods"
        size = max(card.size, charge.card_memory)
        if charge.memory and size and card.memory + charge.memory > size:
            return f"the memory of {charge.uuid} is used up by older pods"
        if card.exclusions and allocation.exclusion not in card.exclusions:
            return f"{charge.uuid} is held by another exclusion tag"
        if allocation.anti_affinity and allocation.anti_affinity in card.anti_affinities:
            return f"{charge.uuid} already has a pod with the anti-affinity tag {allocation.anti_affinity}"
    return ""
