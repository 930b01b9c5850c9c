"""What a pod takes of a node's ordinary resources, as Kubernetes itself computes it, and what a node has of them.

Amounts that can't be read are told as sentences in a list that the caller passes, and count as nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sharepod_operator.core.model import Resources
from sharepod_operator.core.quantity import MAX_AMOUNT, parse_amount, parse_cpu, shown
from sharepod_operator.manifest import names
from sharepod_operator.manifest.access import mapping, mappings, path, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sharepod_operator.manifest.records import Json

DEFAULT_MAX_PODS = 110
"""The kubelet's own default, for nodes that state none."""

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
PODS = "pods"
_POD_LEVEL = (CPU, MEMORY)

Amounts = dict[str, int]
"""Resource name to amount: CPU in milli, everything else in bytes or pieces."""


def read_amounts(written: Json, where: str, problems: list[str]) -> tuple[Resources, int | None, int]:
    """A resource list as Resources, with the number of pods where stated and the number of whole GPUs."""
    amounts = _parse(written, where, problems)
    pods = amounts.pop(PODS, None)
    return _resources(amounts), pods, amounts.get(names.NVIDIA_GPU, 0)


def effective_request(spec: Json, problems: list[str], where: str = "spec") -> Resources:
    """The request of a pod as Kubernetes computes it.

    The larger of what app containers and sidecars take together and of the largest init step, where each init
    container runs beside the sidecars declared before it; then the overhead. A missing request is the limit.
    Pod-level resources win where set.
    """
    return _resources(_effective(spec, problems, where, {}))


def gpu_amounts(spec: Json) -> Amounts:
    """What the pod asks of `koordinator.sh/*`, by the same rule. What can't be read, `effective_request` tells."""
    if not any(key.startswith(names.KOORDINATOR_PREFIX) for key in _stated(spec)):
        return {}
    amounts = _effective(spec, [], "spec", {})
    return {key: amount for key, amount in amounts.items() if key.startswith(names.KOORDINATOR_PREFIX)}


def charged_request(spec: Json, status: Json, stated: Resources) -> Resources:
    """What a bound pod takes: `stated`, or more where the kubelet has allocated more than the spec says now.

    While an in-place resize downwards is under way a container still holds what it was allocated before.
    """
    allocated = _allocated(status)
    if not allocated:
        return stated
    actual = _resources(_effective(spec, [], "spec", allocated))
    return _larger(stated, actual)


def _stated(spec: Json) -> Iterator[str]:
    """The names of all resources that containers state."""
    for kind in ("containers", "initContainers"):
        for container in mappings(spec.get(kind)):
            resources = container.get("resources")
            if resources and isinstance(resources, dict):
                yield from mapping(resources.get("limits"))
                yield from mapping(resources.get("requests"))


def _allocated(status: Json) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for key in ("containerStatuses", "initContainerStatuses"):
        for container in mappings(status.get(key)):
            name, amounts = container.get("name"), container.get("allocatedResources")
            if isinstance(name, str) and isinstance(amounts, dict) and amounts:
                found[name] = amounts
    return found


@dataclass(slots=True)
class _Sum:
    amounts: Amounts

    def add(self, other: Mapping[str, int]) -> None:
        for key, amount in other.items():
            self.amounts[key] = self.amounts.get(key, 0) + amount

    def raise_to(self, *others: Mapping[str, int]) -> None:
        """At least the sum of the others, resource by resource."""
        for key in {key for other in others for key in other}:
            needed = sum(other.get(key, 0) for other in others)
            if needed > self.amounts.get(key, 0):
                self.amounts[key] = needed


def _effective(spec: Json, problems: list[str], where: str, allocated: Mapping[str, Json]) -> Amounts:
    running, sidecars, step = _Sum({}), _Sum({}), _Sum({})
    for index, container in enumerate(mappings(spec.get("containers"))):
        running.add(_container(container, f"{where}.containers[{index}]", problems, allocated))
    for index, container in enumerate(mappings(spec.get("initContainers"))):
        own = _container(container, f"{where}.initContainers[{index}]", problems, allocated)
        if container.get("restartPolicy") == "Always":
            sidecars.add(own)
            step.raise_to(sidecars.amounts)
        else:
            step.raise_to(own, sidecars.amounts)
    running.add(sidecars.amounts)
    running.raise_to(step.amounts)
    _apply_pod_level(running.amounts, mapping(spec.get("resources")), f"{where}.resources", problems)
    running.add(_parse(mapping(spec.get("overhead")), f"{where}.overhead", problems))
    return running.amounts


def _container(container: Json, where: str, problems: list[str], allocated: Mapping[str, Json]) -> Amounts:
    resources = container.get("resources")
    own = _requests(mapping(resources), f"{where}.resources", problems) if resources else {}
    held = allocated.get(text(container.get("name"))) if allocated else None
    if held:
        kept = _Sum(own)
        kept.raise_to(_parse(held, where, problems))
    return own


def _requests(resources: Json, where: str, problems: list[str]) -> Amounts:
    limits = _parse(mapping(resources.get("limits")), f"{where}.limits", problems)
    requests = _parse(mapping(resources.get("requests")), f"{where}.requests", problems)
    return {**limits, **requests}


def _apply_pod_level(amounts: Amounts, resources: Json, where: str, problems: list[str]) -> None:
    if not resources:
        return
    limits = _parse(mapping(resources.get("limits")), f"{where}.limits", problems)
    requests = _parse(mapping(resources.get("requests")), f"{where}.requests", problems)
    for key in {*limits, *requests}:
        if key not in _POD_LEVEL and not key.startswith("hugepages-"):
            continue
        if key in requests:
            amounts[key] = requests[key]
        else:
            amounts.setdefault(key, limits[key])


def _parse(written: Json, where: str, problems: list[str]) -> Amounts:
    amounts: Amounts = {}
    for key, value in written.items():
        stated = str(value) if isinstance(value, int) else value
        try:
            amounts[key] = _amount(key == CPU, stated)
            whole = not key.startswith(names.KOORDINATOR_PREFIX) or _is_whole(stated)
        except (ValueError, TypeError):
            example = "500m or 2" if key == CPU else "512Mi or 1000000"
            problems.append(
                f"{path(where, key)} is {shown(value)}; it must be a quantity of at least 0 such as {example}"
            )
            continue
        if not whole:
            problems.append(f"{path(where, key)} is {shown(value)}; it must be a whole number such as 50")
    return amounts


@lru_cache(maxsize=4096)
def _amount(cpu: bool, value: Any) -> int:  # noqa: FBT001
    return parse_cpu(value) if cpu else parse_amount(value)


def _is_whole(value: Any) -> bool:
    """As the API server demands of every resource that isn't Kubernetes' own."""
    milli = parse_cpu(value)
    return milli % 1000 == 0 or milli == MAX_AMOUNT


def _resources(amounts: Mapping[str, int]) -> Resources:
    return Resources(
        cpu_milli=amounts.get(CPU, 0),
        memory=amounts.get(MEMORY, 0),
        ephemeral_storage=amounts.get(EPHEMERAL_STORAGE, 0),
        extended=tuple(
            sorted(
                (key, amount)
                for key, amount in amounts.items()
                if key not in (CPU, MEMORY, EPHEMERAL_STORAGE) and not key.startswith(names.KOORDINATOR_PREFIX)
            )
        ),
    )


def _larger(first: Resources, second: Resources) -> Resources:
    extended = _Sum(dict(first.extended))
    extended.raise_to(dict(second.extended))
    return Resources(
        max(first.cpu_milli, second.cpu_milli),
        max(first.memory, second.memory),
        max(first.ephemeral_storage, second.ephemeral_storage),
        tuple(sorted(extended.amounts.items())),
    )
