"""The decision: which node, and which of its GPUs, a pod goes to.

`place` finds the best candidate through the snapshot's indexes and stops as soon as nothing further can be better;
`scan` looks at every node and gives the same answer. Neither changes the snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharepod_operator.core.filters import Query, device_refusal, node_refusal, query
from sharepod_operator.core.index import walk
from sharepod_operator.core.model import MILLI_PER_GPU, Allocation, Charge, Decision, GPURequest, Placed, Shape
from sharepod_operator.core.refusal import refuse
from sharepod_operator.core.score import Policy, Visit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from random import Random

    from sharepod_operator.core.node_state import DeviceState, NodeState
    from sharepod_operator.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Offer:
    """The best that one node can do for a pod; smaller is better, then the node's name decides."""

    score: tuple[int, ...]
    devices: tuple[DeviceState, ...] = ()


def decide(snapshot: Snapshot, shape: Shape, policy: Policy) -> Decision:
    """Where the pod goes, or why nothing takes it. Equal snapshots give equal answers."""
    known = snapshot.refusals.get(shape)
    if known is not None and known.version == snapshot.version:
        return known.answer
    return place(snapshot, shape, policy) or refuse(snapshot, shape)


def place(snapshot: Snapshot, shape: Shape, policy: Policy) -> Placed | None:
    """Where the pod goes, or None where nothing takes it: what `decide` does, without working out reasons."""
    asked = query(snapshot, shape)
    some = _named_nodes(snapshot, asked)
    if some is not None:
        best = _best(snapshot, some, asked, policy)
    elif policy.visit in {Visit.BY_NAME, Visit.SHUFFLED}:
        best = _first(snapshot, asked, policy)
    elif asked.gpu is not None:
        best = _best_by_share(snapshot, asked, asked.gpu, policy)
    elif policy.visit is Visit.FULLEST_FIRST:
        best = _first_of_cpu_order(snapshot, asked, policy)
    else:
        best = _best(snapshot, snapshot.names, asked, policy)
    return _placed(best, asked)


def place_on(snapshot: Snapshot, shape: Shape, policy: Policy, names: Iterable[str]) -> Placed | None:
    """Where the pod goes if only these nodes are asked; unknown names are passed over."""
    asked = query(snapshot, shape)
    return _placed(_best(snapshot, names, asked, policy), asked)


def scan(snapshot: Snapshot, shape: Shape, policy: Policy) -> Placed | None:
    """The same as `place` by looking at all nodes: the yardstick for speed."""
    return place_on(snapshot, shape, policy, snapshot.names)


def offer(state: NodeState, asked: Query, policy: Policy) -> Offer | None:
    """What a node that passed the node filters offers, by the policy; None where its GPUs do not suffice."""
    gpu = asked.gpu
    if gpu is None:
        return Offer(policy.node_score(state, asked.cpu))
    need, memory, percent = gpu.milli, gpu.memory, gpu.memory_percent
    ranked: list[tuple[bool, int, int, str, DeviceState]] = []
    for uuid, device in state.devices.items():
        if percent:
            memory = gpu.memory_on(device.device.memory)
        if (need and need > device.free) or (memory and memory > device.memory_free):
            continue  # as the filters say, without the cost of asking them all
        if device_refusal(state, device, gpu, asked) is None:
            idle_last = policy.open_first and not device.pods
            score = policy.device_score(device.free, need)
            ranked.append((idle_last, score, device.memory_free - memory, uuid, device))
    if len(ranked) < gpu.count:
        return None
    if gpu.count == 1:
        chosen = [min(ranked)]
    else:
        ranked.sort()
        chosen = ranked[: gpu.count]
    return Offer((sum(rank[1] for rank in chosen),), tuple(rank[4] for rank in chosen))


def _named_nodes(snapshot: Snapshot, asked: Query) -> Sequence[str] | None:
    """The only nodes that can take the pod where it names a node or GPUs, else None."""
    if asked.constraints.node_name:
        return (asked.constraints.node_name,)
    if asked.pinned is not None:
        return sorted({name for uuid in asked.pinned for name in snapshot.owners(uuid)})
    return None


def _best(snapshot: Snapshot, names: Iterable[str], asked: Query, policy: Policy) -> tuple[str, Offer] | None:
    best: tuple[tuple[int, ...], str] | None = None
    chosen: Offer | None = None
    for name in names:
        state = snapshot.nodes.get(name)
        if state is None or node_refusal(state, asked) is not None:
            continue
        offered = offer(state, asked, policy)
        if offered is not None and (best is None or (offered.score, name) < best):
            best, chosen = (offered.score, name), offered
    return None if best is None or chosen is None else (best[1], chosen)


def _first(snapshot: Snapshot, asked: Query, policy: Policy) -> tuple[str, Offer] | None:
    names = snapshot.names if policy.random is None else _shuffled(snapshot.names, policy.random)
    for name in names:
        state = snapshot.nodes[name]
        if node_refusal(state, asked) is None:
            offered = offer(state, asked, policy)
            if offered is not None:
                return name, offered
    return None


def _first_of_cpu_order(snapshot: Snapshot, asked: Query, policy: Policy) -> tuple[str, Offer] | None:
    """The order is by the score, so the first node that passes is the best."""
    for name in snapshot.cpu_index().walk(asked.cpu):
        state = snapshot.nodes[name]
        if node_refusal(state, asked) is None:
            return name, Offer(policy.node_score(state, asked.cpu))
    return None


def _best_by_share(snapshot: Snapshot, asked: Query, gpu: GPURequest, policy: Policy) -> tuple[str, Offer] | None:
    """Walk the GPUs from the smallest score up, and stop when no node still to come can be better.

    A node first met at a GPU with some free share has none that scores less, so its offer sums up to at least
    `count` times that score; nodes met later have no smaller bound, or the same one and a later name.
    """
    need, count = gpu.milli, gpu.count
    best: tuple[tuple[int, ...], str] | None = None
    chosen: Offer | None = None
    met: set[str] = set()
    indexes = snapshot.share_indexes(gpu.exclusion, gpu.affinity)
    fullest_first = policy.visit is Visit.FULLEST_FIRST
    memory = gpu.memory_on(snapshot.smallest_card) if gpu.memory_percent else gpu.memory
    for free, name in walk(indexes, need, asked.cpu, memory, fullest_first=fullest_first):
        if best is not None and ((count * policy.device_score(free, need),), name) >= best:
            break
        if name in met:
            continue
        met.add(name)
        state = snapshot.nodes[name]
        if (count > 1 and _too_few(state, need, count)) or node_refusal(state, asked) is not None:
            continue
        offered = offer(state, asked, policy)
        if offered is not None and (best is None or (offered.score, name) < best):
            best, chosen = (offered.score, name), offered
    return None if best is None or chosen is None else (best[1], chosen)


def _too_few(state: NodeState, need: int, count: int) -> bool:
    """A cheap look that spares the filters of nodes with too few GPUs."""
    if need == MILLI_PER_GPU:
        return state.whole < count
    return len(state.devices) < count


def _placed(best: tuple[str, Offer] | None, asked: Query) -> Placed | None:
    return None if best is None else placed_on(*best, asked)


def placed_on(name: str, offered: Offer, asked: Query) -> Placed:
    """The decision that takes a node's offer."""
    gpu = asked.gpu
    if gpu is None:
        return Placed(name)
    cards = [device.device for device in offered.devices]
    charges = tuple(Charge(card.uuid, gpu.milli, gpu.memory_on(card.memory)) for card in cards)
    allocation = Allocation(
        charges,
        limit_milli=gpu.limit_milli,
        affinity=gpu.affinity,
        anti_affinity=gpu.anti_affinity,
        exclusion=gpu.exclusion,
        virtual_id=asked.virtual,
    )
    return Placed(name, allocation, offered.score[0])


def _shuffled(names: Sequence[str], random: Random) -> Iterator[str]:
    """The names in random order, drawn one by one, since the first few are often all that is needed."""
    moved: dict[int, int] = {}
    for last in range(len(names) - 1, -1, -1):
        place = random.randrange(last + 1)
        yield names[moved.get(place, place)]
        moved[place] = moved.get(last, last)
