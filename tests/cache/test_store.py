"""A store ends in the same state whatever the order, the repetitions and the losses on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sharepod_operator.cache.store import Store


@dataclass(frozen=True)
class Thing:
    uid: str
    version: int


def read(obj: dict[str, Any]) -> Thing:
    return Thing(obj["metadata"]["uid"], int(obj["metadata"]["resourceVersion"]))


def body(uid: str, version: int) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}}


class Journal:
    """A store together with every change that it told."""

    def __init__(self) -> None:
        self.changes: list[tuple[Thing | None, Thing | None]] = []
        self.store = Store(read, lambda old, new: self.changes.append((old, new)))


def test_an_older_version_never_replaces_a_newer_one() -> None:
    """Events that arrive late or twice change nothing and tell nothing."""
    journal = Journal()
    for version in (5, 4, 5, 6):
        journal.store.observe("MODIFIED", body("a", version))

    assert {"a": Thing("a", 6)} == dict(journal.store)
    assert [(None, Thing("a", 5)), (Thing("a", 5), Thing("a", 6))] == journal.changes


def test_a_deleted_uid_never_comes_back() -> None:
    """A late event of a deleted object, even one with a high version, is ignored."""
    journal = Journal()
    journal.store.observe("ADDED", body("a", 5))
    journal.store.observe("DELETED", body("a", 7))
    journal.store.observe("MODIFIED", body("a", 9))

    assert {} == dict(journal.store)
    assert (Thing("a", 5), None) == journal.changes[-1]


def test_a_deletion_may_arrive_before_the_object_was_ever_seen() -> None:
    """The order between a list and the watch is not given; the deletion wins."""
    journal = Journal()
    journal.store.observe("DELETED", body("a", 7))
    journal.store.replace([body("a", 5)], 6, 0)

    assert {} == dict(journal.store)


def test_a_list_removes_what_it_no_longer_holds() -> None:
    """An object whose deletion nobody reported is gone after the next list; one written after the list stays."""
    journal = Journal()
    journal.store.observe("ADDED", body("gone", 5))
    journal.store.observe("ADDED", body("written-later", 12))
    journal.store.replace([body("kept", 8)], 10, 5)

    assert {"kept", "written-later"} == set(journal.store)


def test_a_list_older_than_what_was_known_means_a_restored_etcd() -> None:
    """After a restore from a snapshot the list counts as it is: versions went back, deleted uids are there again."""
    journal = Journal()
    journal.store.observe("ADDED", body("a", 50))
    journal.store.observe("ADDED", body("b", 60))
    journal.store.observe("DELETED", body("b", 61))
    journal.store.replace([body("a", 20), body("b", 21)], 30, journal.store.highest_version)

    assert {"a": Thing("a", 20), "b": Thing("b", 21)} == dict(journal.store)

    journal.store.observe("MODIFIED", body("a", 31))
    assert 31 == journal.store["a"].version


@given(st.permutations([("ADDED", 1), ("MODIFIED", 2), ("MODIFIED", 3), ("DELETED", 4)]), st.data())
def test_any_order_with_repetitions_ends_alike(order: list[tuple[str, int]], data: st.DataObject) -> None:
    """Whatever arrives in whatever order: the object is gone in the end, and came and went at most once."""
    journal = Journal()
    for event_type, version in order:
        for _ in range(data.draw(st.integers(1, 2))):
            journal.store.observe(event_type, body("a", version))

    assert {} == dict(journal.store)
    assert sum(old is None for old, _ in journal.changes) <= 1
    assert sum(new is None for _, new in journal.changes) <= 1
