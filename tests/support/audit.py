"""What the API server's audit log says about the operator's requests."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AGENT: Final = "sharepod-operator/"
"""How the operator's own client introduces itself; Kopf's watches and the tests have other names."""
_READS: Final = ("get", "list", "watch")


@dataclass(frozen=True, slots=True)
class Request:
    """One request that was answered, or, for a watch, begun."""

    at: datetime
    user: str
    agent: str
    verb: str
    resource: str
    """With its subresource, as in `pods/binding`."""
    name: str
    uid: str
    code: int
    decision: str
    """RBAC's: `allow`, `forbid`, or nothing where it wasn't asked."""

    @property
    def changes(self) -> bool:
        """It changed something: neither a read, nor refused."""
        return self.verb not in _READS and self.code < 300


def requests(log: Path, user: str = "") -> Iterator[Request]:
    """Every request in the order of the log; of one user where he is named."""
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.endswith("\n") or (user and user not in line):
                continue
            entry = json.loads(line)
            found = _request(entry)
            if not user or found.user == user:
                yield found


def bindings(log: Path) -> Counter[str]:
    """How often a Binding was accepted, by the pod's uid."""
    return Counter(each.uid for each in requests(log) if each.resource == "pods/binding" and each.changes)


def _request(entry: dict[str, object]) -> Request:
    reference = entry.get("objectRef")
    target = reference if isinstance(reference, dict) else {}
    status = entry.get("responseStatus")
    user = entry.get("user")
    annotations = entry.get("annotations")
    notes = annotations if isinstance(annotations, dict) else {}
    subresource = target.get("subresource", "")
    return Request(
        at=datetime.fromisoformat(str(entry["requestReceivedTimestamp"])),
        user=str(user.get("username", "")) if isinstance(user, dict) else "",
        agent=str(entry.get("userAgent", "")),
        verb=str(entry["verb"]),
        resource=str(target.get("resource", "")) + (f"/{subresource}" if subresource else ""),
        name=str(target.get("name", "")),
        uid=str(target.get("uid", "")),
        code=int(status.get("code", 0)) if isinstance(status, dict) else 0,
        decision=str(notes.get("authorization.k8s.io/decision", "")),
    )
