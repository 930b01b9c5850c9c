"""Policies: which of the GPUs or nodes that can take a pod is wanted most.

A policy is a pair of scores with a name; the smallest score wins, and ties are broken alike for all of them: by node
name, then GPU memory left, then UUID. Only `bestFit` is meant for use; the others are there to compare with.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod_operator.core.node_state import NodeState

DEFAULT_POLICY: Final = "bestFit"
POLICIES: Final = ("bestFit", "firstFit", "spread", "random")


class Visit(Enum):
    """The order in which nodes may be looked at, so that looking can stop early."""

    FULLEST_FIRST = auto()
    """GPUs by rising free share: the score rises with it."""
    EMPTIEST_FIRST = auto()
    """GPUs by falling free share: the score rises as it falls."""
    BY_NAME = auto()
    """Nodes by name; the first that fits is taken."""
    SHUFFLED = auto()
    """Nodes in random order; the first that fits is taken."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How candidates are ranked."""

    name: str
    visit: Visit
    device_score: Callable[[int, int], int]
    """Of (free milli, needed milli) of a GPU."""
    node_score: Callable[[NodeState, int], tuple[int, ...]]
    """Of a node and the CPU milli wanted there, for a pod without a GPU request."""
    open_first: bool = False
    """Whether a node offers an idle GPU only where its open ones do not suffice."""
    random: Random | None = None


def policy(name: str, random: Random | None = None) -> Policy:
    """The policy of this name.

    Args:
        name: one of POLICIES.
        random: the source of chance of the policy `random`; a fixed one if not given.

    Raises:
        ValueError: there is none of this name; the message lists those there are.
    """
    match name:
        case "bestFit":
            return Policy(name, Visit.FULLEST_FIRST, _share_left, _spare_idle_gpus, open_first=True)
        case "firstFit":
            return Policy(name, Visit.BY_NAME, lambda _free, _need: 0, lambda _state, _cpu: ())
        case "spread":
            return Policy(name, Visit.EMPTIEST_FIRST, lambda free, need: need - free, _most_cpu_left)
        case "random":
            chance = random or Random(0)  # noqa: S311 - placement, no secret
            return Policy(
                name,
                Visit.SHUFFLED,
                lambda _free, _need: chance.getrandbits(32),
                lambda _state, _cpu: (),
                random=chance,
            )
        case _:
            raise ValueError(f'unknown policy "{name}": it must be one of {", ".join(POLICIES)}')


def _share_left(free: int, need: int) -> int:
    return free - need


def _spare_idle_gpus(state: NodeState, cpu: int) -> tuple[int, ...]:
    """Fewest idle GPUs, then least free share, then least CPU left: CPU is kept where GPUs still need it."""
    return state.idle, state.free_milli, state.free_cpu - cpu


def _most_cpu_left(state: NodeState, cpu: int) -> tuple[int, ...]:
    return (cpu - state.free_cpu,)
