"""When the operator counts as healthy and as ready, with a clock that the test moves."""

from __future__ import annotations

import pytest

from sharepod_operator.observability.health import Health, Report


class Clock:
    """Seconds that pass only when told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(["pods", "nodes"], clock=clock, resync_limit=900)


def synced(health: Health) -> Health:
    health.resynced("pods")
    health.resynced("nodes")
    return health


def test_fresh_process_is_healthy_but_not_ready(health: Health) -> None:
    """A start takes its time: no reason for a restart, but none to be counted on either."""
    assert Report(ok=True, leading=False) == health.alive()
    problems = ("pods: not listed yet", "nodes: not listed yet")
    assert Report(ok=False, leading=False, problems=problems) == health.ready()
    assert None is health.resync_age()


def test_standby_with_caches_is_healthy_and_ready(health: Health, clock: Clock) -> None:
    """A standby has no scheduling loop, so its heartbeat isn't missed."""
    synced(health)
    clock.now += 600
    assert (Report(ok=True, leading=False), Report(ok=True, leading=False)) == (health.alive(), health.ready())


def test_leader_that_is_stuck_is_unhealthy(health: Health, clock: Clock) -> None:
    """More than 30 seconds without a heartbeat is a stuck loop; the next heartbeat heals it."""
    synced(health).lead(leading=True)
    clock.now += 30
    assert health.alive().ok
    clock.now += 12
    stuck = ("scheduling loop: no heartbeat for 42 s (limit 30 s)",)
    assert Report(ok=False, leading=True, problems=stuck) == health.alive()
    health.beat()
    assert Report(ok=True, leading=True) == health.alive()


def test_new_leader_has_the_full_limit(health: Health, clock: Clock) -> None:
    """A standby of hours that is elected isn't judged by a heartbeat that it never had; told twice, it isn't excused."""
    synced(health)
    clock.now += 500
    health.beat()
    health.lead(leading=True)
    clock.now += 25
    health.lead(leading=True)
    assert health.alive().ok
    clock.now += 10
    assert not health.alive().ok
    health.lead(leading=False)
    assert health.alive().ok


def test_blind_process_is_unhealthy(health: Health, clock: Clock) -> None:
    """A cache that was never, or not lately, compared with the server is named with its age."""
    health.resynced("pods")
    clock.now += 901
    problems = (
        "pods: not compared with a full list for 901 s (limit 900 s)",
        "nodes: never listed for 901 s (limit 900 s)",
    )
    assert Report(ok=False, leading=False, problems=problems) == health.alive()
    assert health.ready().problems == ("nodes: not listed yet",)
    assert Report(ok=True, leading=False) == synced(health).alive()


def test_resync_age_is_that_of_the_oldest_cache(health: Health, clock: Clock) -> None:
    """One fresh cache doesn't hide an old one."""
    synced(health)
    clock.now += 40
    health.resynced("nodes")
    clock.now += 2
    assert 42 == health.resync_age()


def test_unknown_cache_is_a_mistake(health: Health) -> None:
    """A name that nobody waits for is refused, and the names that there are told."""
    with pytest.raises(KeyError, match="no cache is called 'pod': nodes, pods are"):
        health.resynced("pod")
