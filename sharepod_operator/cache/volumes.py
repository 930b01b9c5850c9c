"""Volumes as last seen: claims, PersistentVolumes and StorageClasses, found by name, and which claims a change is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from sharepod_operator.cache.store import Store, Versioned
from sharepod_operator.manifest.volumes import (
    ClaimRecord,
    StorageClassRecord,
    VolumeRecord,
    read_claim,
    read_storage_class,
    read_volume,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from sharepod_operator.core.model import Pod
    from sharepod_operator.core.volumes import Claim, StorageClass, Volume
    from sharepod_operator.manifest.records import Json


class _Named(Versioned, Protocol):
    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=_Named)


class _ByName(Generic[R]):
    """A store whose records are found by name: the newest of that name, since a recreated one may come first."""

    def __init__(self, read: Callable[[Json], R], changed: Callable[[R | None, R | None], None]) -> None:
        self.store: Store[R] = Store(read, self._entered)
        self._changed = changed
        self._uids: dict[str, str] = {}

    def get(self, name: str) -> R | None:
        uid = self._uids.get(name)
        return None if uid is None else self.store.get(uid)

    def _entered(self, old: R | None, new: R | None) -> None:
        if new is not None:
            self._uids[new.name] = new.uid
        elif old is not None and self._uids.get(old.name) == old.uid:
            del self._uids[old.name]
        self._changed(old, new)


class Volumes:
    """What is known of the cluster's volumes, and which pods use which claim."""

    def __init__(self, changed: Callable[[str], None], placed: Container[str]) -> None:
        """`changed` is called with each claim that pods use and that a change is about; `placed` are uids of pods."""
        self._changed = changed
        self._placed = placed
        self._users: dict[str, dict[str, str]] = {}
        self._claims: _ByName[ClaimRecord] = _ByName(read_claim, self._claim_changed)
        self._volumes: _ByName[VolumeRecord] = _ByName(read_volume, self._volume_changed)
        self._classes: _ByName[StorageClassRecord] = _ByName(read_storage_class, self._class_changed)

    @property
    def claims(self) -> Store[ClaimRecord]:
        """Every PersistentVolumeClaim, by uid."""
        return self._claims.store

    @property
    def volumes(self) -> Store[VolumeRecord]:
        """Every PersistentVolume, by uid."""
        return self._volumes.store

    @property
    def classes(self) -> Store[StorageClassRecord]:
        """Every StorageClass, by uid."""
        return self._classes.store

    def claim(self, key: str) -> Claim | None:
        """The newest claim namespace/name."""
        record = self._claims.get(key)
        return None if record is None else record.claim

    def volume(self, name: str) -> Volume | None:
        """The newest PersistentVolume of that name."""
        record = self._volumes.get(name)
        return None if record is None else record.volume

    def storage_class(self, name: str) -> StorageClass | None:
        """The newest StorageClass of that name."""
        record = self._classes.get(name)
        return None if record is None else record.storage_class

    def use(self, pod: Pod) -> None:
        """The pod is there, placed or not."""
        for use in pod.claims:
            self._users.setdefault(use.key, {})[pod.uid] = pod.key

    def release(self, pod: Pod) -> None:
        """The pod is gone."""
        for use in pod.claims:
            users = self._users.get(use.key, {})
            users.pop(pod.uid, None)
            if not users:
                self._users.pop(use.key, None)

    def users(self, key: str) -> frozenset[str]:
        """Uids of the pods that use this claim, placed or not."""
        return frozenset(self._users.get(key, ()))

    def user_of(self, key: str, but_not: str) -> str:
        """The first pod by name, other than the one with uid `but_not`, that is placed with this claim; "" for none."""
        users = self._users.get(key, {}).items()
        return min((name for uid, name in users if uid != but_not and uid in self._placed), default="")

    def _tell(self, keys: Iterable[str]) -> None:
        """Claims that no pod uses are nobody's news."""
        for key in sorted(keys):
            if key in self._users:
                self._changed(key)

    def _claim_changed(self, old: ClaimRecord | None, new: ClaimRecord | None) -> None:
        if old is None or new is None or old.claim != new.claim:
            self._tell({record.name for record in (old, new) if record is not None})

    def _volume_changed(self, old: VolumeRecord | None, new: VolumeRecord | None) -> None:
        if old is None or new is None or old.volume != new.volume:
            self._tell({record.volume.claim_key for record in (old, new) if record is not None})

    def _class_changed(self, old: StorageClassRecord | None, new: StorageClassRecord | None) -> None:
        if old is None or new is None or old.storage_class != new.storage_class:
            names = {record.name for record in (old, new) if record is not None}
            self._tell({record.name for record in self.claims.values() if record.claim.storage_class in names})
