"""The rules that hold always, checked on the API server's own objects and never on the operator's word.

Nothing of the product's code decides here: ledger entries are read as plain JSON and summed anew.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Json = Mapping[str, Any]

PREFIX: Final = "faasshare.tum"
LOWEST_PORT: Final = 50051
HIGHEST_PORT: Final = 50561
_FINAL: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Objects:
    """What the API server holds, each kind from one list."""

    pods: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    sharepods: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)


def always(found: Objects) -> list[str]:
    """What is wrong at any moment, also in the middle of a change. Pods and nodes may be of slightly different times."""
    return [
        *_amounts(found),
        *_tags(found),
        *_ports(found),
        *_annotations(found),
        *_cpu(found),
        *_ordinals(found),
        *_once(found),
    ]


def at_rest(found: Objects) -> list[str]:
    """What is wrong, besides, when nothing is to be done any more."""
    return [*always(found), *_orphans(found), *_replicas(found), *_statuses(found)]


def ledger(pod: Json) -> dict[str, Any] | None:
    """The ledger entry of a pod that is charged; None where there is none or it is over."""
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in _FINAL:
        return None
    written = pod["metadata"].get("annotations", {}).get(f"{PREFIX}/allocation")
    return json.loads(written) if written else None


def owner_uid(pod: Json) -> str:
    """The uid of the SharePod that controls the pod, or ""."""
    for owner in pod["metadata"].get("ownerReferences", ()):
        if owner.get("controller") and owner["kind"] == "SharePod":
            return str(owner["uid"])
    return ""


def name_of(obj: Json) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def _charges(found: Objects) -> Iterator[tuple[Json, dict[str, Any]]]:
    for pod in found.pods:
        entry = ledger(pod)
        if entry is not None:
            yield pod, entry


def _cards(found: Objects) -> dict[tuple[str, str], int]:
    """Memory of each GPU by node and UUID."""
    cards = {}
    for node in found.nodes:
        inventory = json.loads(node["metadata"].get("annotations", {}).get(f"{PREFIX}/gpu-inventory", "{}"))
        for gpu in inventory.get("gpus", ()):
            cards[node["metadata"]["name"], gpu["uuid"]] = gpu["memory"]
    return cards


def _amounts(found: Objects) -> Iterator[str]:
    """Shares and memory are within each GPU's size, and every device is on the pod's node."""
    cards = _cards(found)
    known_nodes = {node["metadata"]["name"] for node in found.nodes}
    milli: Counter[tuple[str, str]] = Counter()
    memory: Counter[tuple[str, str]] = Counter()
    for pod, entry in _charges(found):
        node = pod["spec"]["nodeName"]
        for gpu in entry["gpus"]:
            card = node, gpu["uuid"]
            if node in known_nodes and card not in cards:
                yield f"{name_of(pod)} holds {gpu['uuid']}, which is no GPU of its node {node}"
            milli[card] += gpu["milli"]
            memory[card] += gpu["memory"]
    yield from (f"{card} is promised to {total} milli" for card, total in milli.items() if total > 1000)
    for card, total in memory.items():
        if card in cards and total > cards[card]:
            yield f"{card} is promised to {total} bytes of {cards[card]}"


def _tags(found: Objects) -> Iterator[str]:
    """One exclusion tag on a GPU, and an anti-affinity tag once."""
    exclusions: dict[tuple[str, str], set[str]] = defaultdict(set)
    anti: Counter[tuple[str, str, str]] = Counter()
    for pod, entry in _charges(found):
        for gpu in entry["gpus"]:
            card = pod["spec"]["nodeName"], gpu["uuid"]
            exclusions[card].add(entry.get("exclusion", ""))
            if entry.get("antiAffinity"):
                anti[*card, entry["antiAffinity"]] += 1
    yield from (f"{card} has the exclusion tags {sorted(tags)}" for card, tags in exclusions.items() if len(tags) > 1)
    yield from (f"{n} pods with one anti-affinity tag share {card}" for card, n in anti.items() if n > 1)


def _ports(found: Objects) -> Iterator[str]:
    taken: dict[tuple[str, int], str] = {}
    for pod, entry in _charges(found):
        place = pod["spec"]["nodeName"], entry["port"]
        if not LOWEST_PORT <= entry["port"] <= HIGHEST_PORT:
            yield f"{name_of(pod)} has port {entry['port']}"
        if place in taken:
            yield f"{name_of(pod)} and {taken[place]} both have port {place[1]} of {place[0]}"
        taken[place] = name_of(pod)


def _annotations(found: Objects) -> Iterator[str]:
    """The plain strings that the environment reads say what the ledger says; a GPU pod is never bound without one."""
    addresses = {
        node["metadata"]["name"]: next(
            (each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP"), ""
        )
        for node in found.nodes
    }
    for pod in found.pods:
        node, notes = pod["spec"].get("nodeName", ""), pod["metadata"].get("annotations", {})
        written = notes.get(f"{PREFIX}/allocation")
        if notes.get(f"{PREFIX}/gpu-request") and bool(node) != bool(written):
            yield f"{name_of(pod)} is on node {node!r} with the ledger entry {written!r}"
        if not written:
            continue
        entry = json.loads(written)
        expected = {
            "gpu-uuids": ",".join(gpu["uuid"] for gpu in entry["gpus"]),
            "pod-manager-port": str(entry["port"]),
            "client-id": name_of(pod),
        }
        if node in addresses:
            expected["pod-manager-ip"] = addresses[node]
        for key, value in expected.items():
            if notes.get(f"{PREFIX}/{key}") != value:
                yield f"{name_of(pod)} has {key} {notes.get(f'{PREFIX}/{key}')!r} instead of {value!r}"


def _cpu(found: Objects) -> Iterator[str]:
    """Pods and CPU of every node; containers of the tests state CPU in whole numbers or in m."""
    for node in found.nodes:
        name, room = node["metadata"]["name"], node["status"]["allocatable"]
        mine = [
            pod
            for pod in found.pods
            if pod["spec"].get("nodeName") == name and pod["status"].get("phase") not in _FINAL
        ]
        if len(mine) > int(room["pods"]):
            yield f"{name} has {len(mine)} pods, and room for {room['pods']}"
        asked = sum(
            _milli(container.get("resources", {}).get("requests", {}).get("cpu", "0"))
            for pod in mine
            for container in pod["spec"]["containers"]
        )
        if asked > _milli(room["cpu"]):
            yield f"{name} is asked for {asked}m CPU, and has {room['cpu']}"


def _milli(cpu: str) -> int:
    return int(cpu[:-1]) if cpu.endswith("m") else int(cpu) * 1000


def _ordinals(found: Objects) -> Iterator[str]:
    """No replica has two pods that are neither over nor on their way out."""
    served: Counter[tuple[str, str]] = Counter()
    for pod in found.pods:
        if _active(pod) and owner_uid(pod):
            ordinal = pod["metadata"]["annotations"][f"{PREFIX}/replica"].partition(".")[0]
            served[owner_uid(pod), ordinal] += 1
    yield from (
        f"SharePod uid {uid} has {n} pods for replica {ordinal}" for (uid, ordinal), n in served.items() if n > 1
    )


def _once(found: Objects) -> Iterator[str]:
    """What happens once is told once: a pod's placement, a generation's completion."""
    told: Counter[tuple[str, str]] = Counter()
    for event in found.events:
        if event["reason"] == "Scheduled" and event.get("reportingController", "").startswith(PREFIX):
            told["Scheduled", event["regarding"]["uid"]] += 1 + (event.get("series") or {}).get("count", 0)
    yield from (
        f"{reason} was told {n} times about the pod with uid {uid}" for (reason, uid), n in told.items() if n > 1
    )


def _orphans(found: Objects) -> Iterator[str]:
    uids = {sharepod["metadata"]["uid"] for sharepod in found.sharepods}
    for pod in found.pods:
        if owner_uid(pod) and owner_uid(pod) not in uids:
            yield f"{name_of(pod)} is left over from a SharePod that is gone"


def _active(pod: Json) -> bool:
    return pod["status"].get("phase") not in _FINAL and not pod["metadata"].get("deletionTimestamp")


def _replicas(found: Objects) -> Iterator[str]:
    counts = Counter(owner_uid(pod) for pod in found.pods if _active(pod))
    for sharepod in found.sharepods:
        wanted, there = sharepod["spec"]["replicas"], counts[sharepod["metadata"]["uid"]]
        if _condition(sharepod, "Accepted").get("status") == "True" and there != wanted:
            yield f"SharePod {name_of(sharepod)} has {there} pods instead of {wanted}"


def _statuses(found: Objects) -> Iterator[str]:
    """Everything that `kubectl get` shows of a SharePod is true."""
    pods: dict[str, list[Json]] = defaultdict(list)
    for pod in found.pods:
        if pod["status"].get("phase") not in _FINAL:
            pods[owner_uid(pod)].append(pod)
    for sharepod in found.sharepods:
        status, mine = sharepod.get("status", {}), pods[sharepod["metadata"]["uid"]]
        for key, value in _expected_status(sharepod, mine).items():
            shown = status.get(key)
            if key == "placements":
                shown = sorted(shown or (), key=lambda entry: entry["pod"])
            if shown != value:
                yield f"SharePod {name_of(sharepod)} shows {key} {shown!r} instead of {value!r}"


def _expected_status(sharepod: Json, mine: list[Json]) -> dict[str, Any]:
    active = [pod for pod in mine if _active(pod)]
    held = [(pod, entry) for pod in mine if (entry := ledger(pod)) is not None]
    ready = sum(_ready(pod) for pod in active)
    expected = {
        "observedGeneration": sharepod["metadata"]["generation"],
        "replicas": len(active),
        "readyReplicas": ready,
        "placements": [_placement(pod) for pod in sorted(mine, key=lambda pod: str(pod["metadata"]["name"]))],
        "pod2node": {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in mine if pod["spec"].get("nodeName")},
        "boundDeviceIDs": {pod["metadata"]["name"]: _joined(entry) for pod, entry in held},
        "podManagerPort": {pod["metadata"]["name"]: entry["port"] for pod, entry in held},
        "usage": {pod["metadata"]["name"]: _usage(entry) for pod, entry in held},
    }
    if not sharepod["spec"].get("minReadySeconds"):
        expected["availableReplicas"] = ready
    return expected


def _placement(pod: Json) -> dict[str, Any]:
    state = "Terminating" if pod["metadata"].get("deletionTimestamp") else pod["status"]["phase"]
    shown = {"pod": pod["metadata"]["name"], "state": state}
    if pod["spec"].get("nodeName"):
        shown["node"] = pod["spec"]["nodeName"]
    entry = ledger(pod)
    if entry is not None:
        shown["gpus"] = [gpu["uuid"] for gpu in entry["gpus"]]
        shown["request"] = f"{entry['gpus'][0]['milli'] / 1000:.3f}"
        shown["memory"] = _bytes(entry["gpus"][0]["memory"])
        shown["port"] = entry["port"]
    return shown


def _usage(entry: Json) -> dict[str, Any]:
    times = f"x{len(entry['gpus'])}" if len(entry["gpus"]) > 1 else ""
    share = f"{entry['gpus'][0]['milli'] / 1000:.3f}"
    return {"gpu": share + times, "totalMemoryBytes": sum(gpu["memory"] for gpu in entry["gpus"])}


def _joined(entry: Json) -> str:
    return ",".join(gpu["uuid"] for gpu in entry["gpus"])


def _bytes(amount: int) -> str:
    """As the tests state memory: in Gi, in Mi, or 0."""
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20)):
        if amount and amount % size == 0:
            return f"{amount // size}{unit}"
    return str(amount)


def _ready(pod: Json) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))


def _condition(obj: Json, kind: str) -> Json:
    conditions: Iterable[Json] = obj.get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == kind), {})
