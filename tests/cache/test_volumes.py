"""Volumes by name, and which claims a change is about."""

from __future__ import annotations

from dataclasses import replace

from sharepod_operator.cache.volumes import Volumes
from sharepod_operator.core.model import ClaimUse, Pod, Shape
from sharepod_operator.core.volumes import ClaimPhase

USER = Pod("p", "ml", "bert", Shape(), claims=(ClaimUse("ml/data"),))


def claim(
    uid: str, version: int, *, phase: str = "Bound", storage_class: str = "fast", **metadata: object
) -> dict[str, object]:
    return {
        "metadata": {"name": "data", "namespace": "ml", "uid": uid, "resourceVersion": str(version), **metadata},
        "spec": {"volumeName": "pv", "storageClassName": storage_class},
        "status": {"phase": phase},
    }


def test_a_claim_made_anew_stays_when_the_old_one_is_reported_gone_later() -> None:
    """Events of different objects come in any order; the name belongs to the newest."""
    volumes = Volumes(lambda _: None, ())
    volumes.claims.observe("ADDED", claim("old", 1))
    volumes.claims.observe("ADDED", claim("new", 3, phase="Pending"))
    volumes.claims.observe("DELETED", claim("old", 2))
    found = volumes.claim("ml/data")
    assert found is not None
    assert ClaimPhase.PENDING is found.phase

    volumes.claims.observe("DELETED", claim("new", 4))
    assert volumes.claim("ml/data") is None


def test_only_what_counts_is_news() -> None:
    """A claim that pods use speaks when it, its volume or its class says something new; others are silent."""
    news: list[str] = []
    volumes = Volumes(news.append, ())

    def told() -> list[str]:
        heard = list(news)
        news.clear()
        return heard

    volumes.claims.observe("ADDED", claim("c", 1))
    assert [] == told()
    volumes.use(USER)
    volumes.claims.observe("MODIFIED", claim("c", 2, labels={"a": "b"}))
    assert [] == told()
    volumes.claims.observe("MODIFIED", claim("c", 3, phase="Lost"))
    assert ["ml/data"] == told()

    reference = {"claimRef": {"namespace": "ml", "name": "data"}}
    volumes.volumes.observe(
        "ADDED", {"metadata": {"name": "pv", "uid": "v", "resourceVersion": "3"}, "spec": reference}
    )
    assert ["ml/data"] == told()
    volumes.volumes.observe("MODIFIED", {"metadata": {"name": "pv", "uid": "v", "resourceVersion": "4"}, "spec": {}})
    assert ["ml/data"] == told()
    volumes.classes.observe("ADDED", {"metadata": {"name": "slow", "uid": "t", "resourceVersion": "5"}})
    assert [] == told()
    volumes.classes.observe("ADDED", {"metadata": {"name": "fast", "uid": "s", "resourceVersion": "6"}})
    assert ["ml/data"] == told()
    volumes.release(USER)
    volumes.claims.observe("DELETED", claim("c", 7))
    assert [] == told()


def test_the_user_of_a_claim_is_another_placed_pod() -> None:
    """Pods that wait hold nothing; of several placed ones the first by name is told."""
    placed: set[str] = set()
    volumes = Volumes(lambda _: None, placed)
    for pod in (USER, replace(USER, uid="q", name="zed"), replace(USER, uid="r", name="anna")):
        volumes.use(pod)
    assert frozenset("pqr") == volumes.users("ml/data")
    assert "" == volumes.user_of("ml/data", "p")
    placed |= {"p", "q"}
    assert ("ml/zed", "ml/bert", "ml/bert") == tuple(volumes.user_of("ml/data", uid) for uid in "pqr")
