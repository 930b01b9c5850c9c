"""The annotation that says what was decided for a preemptor: node and GPUs, and who has to leave for it.

It is written in one patch with `status.nominatedNodeName`, before the first victim is deleted, so that after a crash the
same preemptor gets the same GPUs and nobody else is evicted for it. The Binding voids it with an empty text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from sharepod_operator.manifest.ledger import LedgerError, decode_allocation, encode_allocation

if TYPE_CHECKING:
    from sharepod_operator.core.model import Allocation

MAX_VICTIMS = 1000


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that has to leave; the uid tells it from a later pod of the same name."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        """namespace/name, for people."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Nomination:
    """Room promised to a preemptor."""

    node: str
    allocation: Allocation | None
    """The GPUs; None for a pod that asks for none. Its port is drawn when it is bound."""
    victims: tuple[Victim, ...]
    attempt: int = 1
    """How often this pod has had pods evicted for it, this time included."""


def encode_nomination(nomination: Nomination) -> str:
    """The nomination as JSON."""
    body: dict[str, Any] = {
        "node": nomination.node,
        "victims": [
            {"namespace": victim.namespace, "name": victim.name, "uid": victim.uid} for victim in nomination.victims
        ],
        "attempt": nomination.attempt,
    }
    if nomination.allocation is not None:
        body["allocation"] = orjson.Fragment(encode_allocation(nomination.allocation))
    return orjson.dumps(body).decode()


def decode_nomination(written: str) -> Nomination:
    """The nomination of `encode_nomination`.

    Raises:
        LedgerError: the text is no nomination.
    """
    try:
        body = orjson.loads(written)
    except orjson.JSONDecodeError as error:
        raise LedgerError(f"it is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise LedgerError("it is no JSON object")
    node, attempt, victims = body.get("node"), body.get("attempt"), body.get("victims")
    if not isinstance(node, str) or not node:
        raise LedgerError("node must be the name of a node")
    if not isinstance(attempt, int) or isinstance(attempt, bool) or attempt < 1:
        raise LedgerError("attempt must be an integer of at least 1")
    if not isinstance(victims, list) or len(victims) > MAX_VICTIMS:
        raise LedgerError(f"victims must be a list of at most {MAX_VICTIMS} pods")
    allocation = body.get("allocation")
    return Nomination(
        node,
        None if allocation is None else decode_allocation(orjson.dumps(allocation).decode()),
        tuple(_victim(each) for each in victims),
        attempt,
    )


def _victim(body: Any) -> Victim:
    if not isinstance(body, dict) or not all(
        isinstance(body.get(key), str) and body[key] for key in ("namespace", "name", "uid")
    ):
        raise LedgerError("each victim must have a namespace, a name and a uid")
    return Victim(body["namespace"], body["name"], body["uid"])
