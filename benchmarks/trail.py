"""The API server's audit log as the benchmarks' only witness: one clock for everybody, and no watcher that costs anything."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

READS = ("get", "list", "watch")
NOT_COUNTED = ("leases", "selfsubjectreviews", "selfsubjectaccessreviews", "subjectaccessreviews", "tokenreviews")
"""What a process writes about itself, whatever work there is."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request that was answered, or, for a watch, begun. Times are seconds since the epoch, by the API server's clock."""

    received: float
    answered: float
    user: str
    agent: str
    verb: str
    resource: str
    """With its subresource, as in `pods/binding`."""
    namespace: str
    name: str
    code: int

    @property
    def changes(self) -> bool:
        """It changed something: neither a read, nor refused, nor only about the caller itself."""
        return self.verb not in READS and 200 <= self.code < 300 and self.resource not in NOT_COUNTED


class Trail:
    """Follows an audit log from where it ends now, also over the API server's rotation of the file."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._file: BinaryIO = log.open("rb")
        self._file.seek(0, 2)
        self._rest = b""

    def close(self) -> None:
        """Read no further."""
        self._file.close()

    def read(self) -> list[Request]:
        """The requests since the last call."""
        found = self._whole_lines()
        if self._log.stat().st_ino != os.fstat(self._file.fileno()).st_ino:
            self._file.close()
            self._file = self._log.open("rb")
            found += self._whole_lines()
        return [_request(line) for line in found]

    def _whole_lines(self) -> list[bytes]:
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [line for line in lines if line]


def writes(requests: Iterable[Request], user: str) -> Counter[str]:
    """How often a user changed what, as in `create pods/binding`."""
    return Counter(f"{each.verb} {each.resource}" for each in requests if each.user == user and each.changes)


def _request(line: bytes) -> Request:
    entry = orjson.loads(line)
    target = entry.get("objectRef") or {}
    subresource = target.get("subresource", "")
    return Request(
        received=_seconds(entry["requestReceivedTimestamp"]),
        answered=_seconds(entry["stageTimestamp"]),
        user=(entry.get("user") or {}).get("username", ""),
        agent=entry.get("userAgent", ""),
        verb=entry["verb"],
        resource=target.get("resource", "") + (f"/{subresource}" if subresource else ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=(entry.get("responseStatus") or {}).get("code", 0),
    )


def _seconds(written: str) -> float:
    return datetime.fromisoformat(written).timestamp()
