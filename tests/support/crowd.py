"""Users who create, scale, edit and delete SharePods all the time; always the same ones for the same seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tests.support.workbench import gpu, sharepod

if TYPE_CHECKING:
    from tests.support.workbench import Workbench


class Crowd:
    """Does one thing after the other in a namespace."""

    def __init__(self, bench: Workbench, *, seed: int, at_once: int) -> None:
        """At most `at_once` SharePods are there at a time."""
        self._bench = bench
        self._rng = random.Random(seed)
        self._at_once = at_once
        self._alive: list[str] = []
        self.created = 0

    def come(self, number: int) -> None:
        """So many SharePods are created, and those that are there live their lives meanwhile."""
        for _ in range(number):
            if len(self._alive) >= self._at_once:
                self._bench.delete(self._alive.pop(self._rng.randrange(len(self._alive))))
            self._create()
            self.step()

    def step(self) -> None:
        """One of those that are there is scaled, edited or deleted."""
        if not self._alive:
            return
        name = self._rng.choice(self._alive)
        match self._rng.choice(("scale", "scale", "edit", "delete")):
            case "scale":
                self._bench.scale(name, self._rng.randint(0, 4))
            case "edit":
                self._bench.edit(name, {"spec": {"gpu": self._request()}})
            case _ if len(self._alive) > self._at_once // 2:
                self._alive.remove(name)
                self._bench.delete(name)
            case _:
                self._bench.scale(name, 1)

    def _create(self) -> None:
        name = f"crowd-{self.created}"
        self._bench.create(sharepod(name, self._request(), replicas=self._rng.randint(0, 3)))
        self.created += 1
        self._alive.append(name)

    def _request(self) -> dict[str, Any]:
        request = self._rng.choice((0.1, 0.25, 0.3, 0.5, 0.7, 1.0))
        tags = self._rng.choice(({}, {}, {"antiAffinity": "spread"}, {"exclusion": "team"}, {"affinity": "likes"}))
        none = {"limit": None, "affinity": None, "antiAffinity": None, "exclusion": None}
        return {
            **none,
            **gpu(request, f"{self._rng.choice((0, 1, 8, 20))}Gi", count=self._rng.choice((1, 1, 1, 2))),
            **tags,
        }
