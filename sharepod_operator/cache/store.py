"""One kind of object as last seen, keyed by uid and guarded by resourceVersion.

Watches repeat, reorder between objects and lose deletions; lists are the authority. The rules here make every order
of arrival end in the same state: an older version never replaces a newer one, a deleted uid never comes back, and a
list removes what it no longer holds unless that was written after the list was taken.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

Json = dict[str, Any]

TOMBSTONES = 65_536
"""How many deleted uids are remembered; a late event of an older one could only come from a list long superseded."""


class Versioned(Protocol):
    """What a record must tell about itself."""

    @property
    def uid(self) -> str:
        """metadata.uid."""
        ...

    @property
    def version(self) -> int:
        """metadata.resourceVersion."""
        ...


R = TypeVar("R", bound=Versioned)


class Store(Mapping[str, R], Generic[R]):
    """Records by uid. `changed(old, new)` is called once for every difference, with None for "not there"."""

    def __init__(self, read: Callable[[Json], R], changed: Callable[[R | None, R | None], None]) -> None:
        self._read = read
        self._changed = changed
        self._records: dict[str, R] = {}
        self._tombstones: OrderedDict[str, None] = OrderedDict()
        self._highest = 0

    def __getitem__(self, uid: str) -> R:
        return self._records[uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def highest_version(self) -> int:
        """The newest resourceVersion seen; a consistent list asked for now can't be older, unless etcd was restored."""
        return self._highest

    def observe(self, event_type: str | None, obj: Json) -> None:
        """Take in one watch event, or the body that a write of ours returned (`event_type` None)."""
        metadata = obj["metadata"]
        uid: str = metadata["uid"]
        version = int(metadata["resourceVersion"])
        self._highest = max(self._highest, version)
        if event_type == "DELETED":
            self.remove(uid)
            return
        if uid in self._tombstones:
            return
        old = self._records.get(uid)
        if old is not None and version <= old.version:
            return
        self._put(old, self._read(obj))

    def replace(self, items: Iterable[Json], list_version: int, known_before: int) -> None:
        """Take in a consistent list.

        `known_before` is `highest_version` when the list was asked for. A list older than that tells of an etcd
        restored from a snapshot: then nothing remembered counts against it.
        """
        restored = list_version < known_before
        if restored:
            self._tombstones.clear()
            self._highest = list_version
        listed: set[str] = set()
        for obj in items:
            uid = obj["metadata"]["uid"]
            listed.add(uid)
            if restored:
                self._put(self._records.get(uid), self._read(obj))
            else:
                self.observe(None, obj)
        for uid in [uid for uid in self._records if uid not in listed]:
            if restored or self._records[uid].version <= list_version:
                self.remove(uid)
        self._highest = max(self._highest, list_version)

    def remove(self, uid: str) -> None:
        """The object is gone for good; the uid never comes back."""
        self._tombstones[uid] = None
        if len(self._tombstones) > TOMBSTONES:
            self._tombstones.popitem(last=False)
        old = self._records.pop(uid, None)
        if old is not None:
            self._changed(old, None)

    def _put(self, old: R | None, new: R) -> None:
        self._records[new.uid] = new
        self._changed(old, new)
