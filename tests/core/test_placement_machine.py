"""Random histories of a small cluster: pods come and go, nodes change, dry runs are undone.

After every step the ledger adds up, the rules that always hold do hold, and every decision equals that of an oracle
that knows no index: so nothing is refused while there is room, and the best place is taken.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sharepod_operator.core.model import (
    Allocation,
    Assigned,
    Charge,
    Constraints,
    Device,
    GPURequest,
    HostPort,
    Node,
    Placed,
    Requirement,
    Resources,
    SelectorTerm,
    Shape,
    Taint,
    Toleration,
    Unschedulable,
)
from sharepod_operator.core.placement import decide, place_on, scan
from sharepod_operator.core.ports import PortRange, next_port
from sharepod_operator.core.score import policy
from sharepod_operator.core.snapshot import Snapshot
from tests.support.oracle import Oracle

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject, DrawFn

PORTS = PortRange(50051, 4)
BEST_FIT = policy("bestFit")
TAGS = st.sampled_from(["", "", "x", "y"])
NAMES = ["a", "b", "c"]
UUIDS = [f"{name}{index}" for name in NAMES for index in range(3)]
MILLI = st.sampled_from([0, 1, 250, 300, 500, 700, 1000])
MEMORY = st.sampled_from([0, 1, 8, 10, 16])
PERCENT = st.sampled_from([0, 0, 0, 1, 33, 50, 100])
RESOURCES = st.builds(
    Resources,
    cpu_milli=st.sampled_from([0, 1, 500, 1000, 3000]),
    memory=st.sampled_from([0, 1, 50]),
    ephemeral_storage=st.sampled_from([0, 0, 0, 5]),
    extended=st.sampled_from([(), (), (("example.com/nic", 1),)]),
)
PORT_SETS = st.sampled_from([(), (), (), (HostPort(80),), (HostPort(80, ip="10.0.0.1"),), (HostPort(80, "UDP"),)])
IN_EAST = SelectorTerm((Requirement("zone", "In", ("east",)),))
ON_B = SelectorTerm(fields=(Requirement("metadata.name", "In", ("b",)),))
CONSTRAINTS = st.builds(
    Constraints,
    node_name=st.sampled_from(["", "", "", "", "a", "b", "z"]),
    node_selector=st.sampled_from([(), (), (("zone", "east"),)]),
    tolerations=st.sampled_from([(), (), (Toleration("k", "Exists"),)]),
    host_ports=PORT_SETS,
    volume_affinity=st.sampled_from([(), (), ((IN_EAST,),), ((IN_EAST, ON_B),), ((IN_EAST,), (ON_B,))]),
    unsupported=st.sampled_from([(), (), (), (), ("podAffinity",)]),
)


PINS: st.SearchStrategy[tuple[str, ...]] = st.sampled_from([(), (), ("a0", "b1"), ("b0", "b1", "c0"), ("gone",)])
GPU_IDS = st.sampled_from(["", "", "", "a0", "v1"])


@st.composite
def gpu_requests(draw: DrawFn) -> GPURequest:
    """Requests that a user could make; one that names a GPU or a virtual one asks for one GPU."""
    milli = draw(MILLI)
    gpu_id = draw(GPU_IDS)
    percent = draw(PERCENT)
    return GPURequest(
        milli,
        max(milli, 1),
        0 if percent else draw(MEMORY),
        1 if gpu_id else draw(st.sampled_from([1, 1, 1, 2, 3])),
        draw(TAGS),
        draw(TAGS),
        draw(TAGS),
        draw(PINS),
        gpu_id,
        percent,
    )


SHAPES = st.builds(Shape, RESOURCES, CONSTRAINTS, st.one_of(st.none(), gpu_requests(), gpu_requests(), gpu_requests()))
PLAIN_SHAPES = st.builds(
    lambda milli, memory, percent, count: Shape(
        gpu=GPURequest(milli, max(milli, 1), 0 if percent else memory, count, memory_percent=percent)
    ),
    MILLI,
    MEMORY,
    PERCENT,
    st.sampled_from([1, 1, 2]),
)


@st.composite
def clusters(draw: DrawFn) -> list[Node]:
    """One to three nodes with none to three GPUs of different sizes."""
    return [
        Node(
            name,
            labels=(("zone", draw(st.sampled_from(["east", "west"]))),),
            allocatable=Resources(
                draw(st.sampled_from([0, 2000, 8000])), draw(st.sampled_from([60, 1000])), 5, (("example.com/nic", 1),)
            ),
            max_pods=draw(st.sampled_from([2, 10])),
            devices=tuple(
                Device(f"{name}{index}", draw(st.sampled_from([8, 16, 24]))) for index in range(draw(st.integers(0, 3)))
            ),
        )
        for name in NAMES[: draw(st.integers(1, 3))]
    ]


class Cluster(RuleBasedStateMachine):
    """The snapshot beside plain lists of what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshot = Snapshot(ports=PORTS)
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Assigned] = {}
        self.cursors: dict[str, int] = defaultdict(int)
        self.serial = 0
        self.strays = False

    @initialize(nodes=clusters(), strays_come=st.sampled_from([False, False, True]))
    def begin(self, nodes: list[Node], *, strays_come: bool) -> None:
        self.strays = strays_come
        for node in nodes:
            self._set(node)

    @rule(shape=st.one_of(SHAPES, PLAIN_SHAPES))
    def place(self, shape: Shape) -> None:
        self._place(shape)

    @rule(shape=st.one_of(SHAPES, PLAIN_SHAPES), times=st.integers(2, 4))
    def place_replicas(self, shape: Shape, times: int) -> None:
        for _ in range(times):
            self._place(shape)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def remove(self, data: DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        assert self.pods.pop(uid) == self.snapshot.remove(uid)
        assert self.snapshot.remove(uid) is None

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), shape=SHAPES)
    def dry_run(self, data: DataObject, shape: Shape) -> None:
        """Pods taken out for a look and put back leave no trace."""
        before = decide(self.snapshot, shape, BEST_FIT)
        out = data.draw(st.lists(st.sampled_from(sorted(self.pods)), unique=True, min_size=1))
        taken = [self.snapshot.remove(uid) for uid in out]
        rest = [pod for uid, pod in self.pods.items() if uid not in out]
        self._compare(shape, rest)
        for pod in data.draw(st.permutations(taken)):
            assert pod is not None
            self.snapshot.add(pod)
        self.snapshot.validate()
        assert before == decide(self.snapshot, shape, BEST_FIT)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def change_node(self, data: DataObject) -> None:
        """Readiness, taints, CPU, health and inventory change; the pods there stay charged."""
        node = self.nodes[data.draw(st.sampled_from(sorted(self.nodes)))]
        change = data.draw(st.sampled_from(["ready", "cordon", "taint", "cpu", "health", "gone", "foreign"]))
        match change:
            case "ready":
                node = replace(node, ready=not node.ready)
            case "cordon":
                node = replace(node, unschedulable=not node.unschedulable)
            case "taint":
                taint = Taint("k", "v", data.draw(st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])))
                node = replace(node, taints=() if node.taints else (taint,))
            case "cpu":
                node = replace(node, allocatable=replace(node.allocatable, cpu_milli=4000))
            case "health":
                node = replace(
                    node,
                    devices=tuple(
                        replace(d, healthy=data.draw(st.booleans()), cordoned=data.draw(st.booleans()))
                        for d in node.devices
                    ),
                )
            case "gone":
                node = replace(node, devices=tuple(d for d in node.devices if data.draw(st.booleans())))
            case "foreign":
                node = replace(node, foreign_gpu_users=not node.foreign_gpu_users)
        self._set(node)

    @rule(nodes=clusters())
    def nodes_come_back(self, nodes: list[Node]) -> None:
        """Nodes and GPUs of the same names appear again; those that are there keep their cards' sizes."""
        for node in nodes:
            sizes = {d.uuid: d.memory for known in self.nodes.values() for d in known.devices}
            held = {c.uuid for pod in self.pods.values() if pod.allocation for c in pod.allocation.charges}
            devices = [replace(d, memory=sizes.get(d.uuid, 24 if d.uuid in held else d.memory)) for d in node.devices]
            self._set(replace(node, devices=tuple(devices)))

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def remove_node(self, data: DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        del self.nodes[name]
        self.snapshot.remove_node(name)

    @precondition(lambda self: self.strays)
    @rule(
        node=st.sampled_from([*NAMES, "z"]), uuids=st.lists(st.sampled_from([*UUIDS, "gone"]), unique=True, max_size=2)
    )
    def charge_beyond_size(self, node: str, uuids: list[str]) -> None:
        """Someone bound a pod without asking: it is charged as it is, and nothing more is promised about that GPU."""
        allocation = Allocation(tuple(Charge(uuid, 600, 10) for uuid in uuids), exclusion="x", anti_affinity="y")
        self._add(Assigned(self._uid(), node, Resources(1000, 10), (HostPort(80),), allocation if uuids else None))

    @precondition(lambda self: len(self.pods) > 8)
    @rule()
    def clear(self) -> None:
        self.snapshot.clear()
        self.nodes.clear()
        self.pods.clear()

    @invariant()
    def ledger_adds_up(self) -> None:
        self.snapshot.validate()
        assert self.pods == dict(self.snapshot.pods)
        assert sorted(self.nodes) == self.snapshot.names

    @invariant()
    def gpus_are_not_oversold(self) -> None:
        """At most 1000 milli and the card's own memory, unless someone placed pods behind our back."""
        if self.strays:
            return
        sizes = {device.uuid: device.memory for node in self.nodes.values() for device in node.devices}
        milli: Counter[str] = Counter()
        memory: Counter[str] = Counter()
        for pod in self.pods.values():
            for charge in pod.allocation.charges if pod.allocation else ():
                milli[charge.uuid] += charge.milli
                memory[charge.uuid] += charge.memory
                assert charge.uuid.startswith(pod.node)
        assert all(total <= 1000 for total in milli.values()), milli
        assert all(total <= sizes.get(uuid, total) for uuid, total in memory.items()), (memory, sizes)

    @invariant()
    def tags_and_ports_hold(self) -> None:
        """One exclusion tag per GPU, no anti-affinity tag twice, ports unique on a node, one card per virtual GPU."""
        if self.strays:
            return
        ports = [(pod.node, pod.allocation.port) for pod in self.pods.values() if pod.allocation]
        assert len(ports) == len(set(ports))
        exclusion: dict[str, set[str]] = defaultdict(set)
        anti: Counter[tuple[str, str]] = Counter()
        cards: dict[tuple[str, str], set[str]] = defaultdict(set)
        for pod in self.pods.values():
            if pod.allocation is None:
                continue
            for uuid in pod.allocation.uuids:
                exclusion[uuid].add(pod.allocation.exclusion)
                if pod.allocation.anti_affinity:
                    anti[uuid, pod.allocation.anti_affinity] += 1
                if pod.allocation.virtual_id:
                    cards[pod.node, pod.allocation.virtual_id].add(uuid)
        assert all(len(tags) == 1 for tags in exclusion.values()), exclusion
        assert all(times == 1 for times in anti.values()), anti
        assert all(len(uuids) == 1 for uuids in cards.values()), cards

    def _place(self, shape: Shape) -> None:
        decision = self._compare(shape, list(self.pods.values()))
        if not isinstance(decision, Placed):
            return
        allocation = decision.allocation
        if allocation is not None:
            drawn = next_port(self.snapshot.used_ports(decision.node), self.cursors[decision.node], PORTS)
            assert drawn is not None
            port, self.cursors[decision.node] = drawn
            allocation = replace(allocation, port=port)
        self._add(Assigned(self._uid(), decision.node, shape.resources, shape.constraints.host_ports, allocation))

    def _compare(self, shape: Shape, pods: list[Assigned]) -> Placed | Unschedulable:
        """The decision, after it was found equal to the oracle's and to that of a scan, and to change nothing."""
        version = self.snapshot.version
        decision = decide(self.snapshot, shape, BEST_FIT)
        expected = Oracle(list(self.nodes.values()), pods, frozenset(range(50051, 50055))).answer(shape)
        match decision:
            case Placed(node=node, allocation=allocation):
                assert expected == (node, frozenset(allocation.uuids if allocation else ()))
                assert decision == scan(self.snapshot, shape, BEST_FIT)
                assert decision == place_on(self.snapshot, shape, BEST_FIT, [node, "no-such-node"])
            case Unschedulable(nodes=nodes, devices=devices):
                assert expected == {name: str(why.reason) for name, why in (nodes | devices).items()}
                assert scan(self.snapshot, shape, BEST_FIT) is None
        assert version == self.snapshot.version
        assert decision == decide(self.snapshot, shape, BEST_FIT)
        return decision

    def _set(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.snapshot.set_node(node)

    def _add(self, pod: Assigned) -> None:
        self.pods[pod.uid] = pod
        self.snapshot.add(pod)

    def _uid(self) -> str:
        self.serial += 1
        return f"pod-{self.serial}"


TestCluster = Cluster.TestCase
TestCluster.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
