"""From a pod's spec to the Constraints that the scheduler checks, and the names of those that it can't check.

A constraint that this scheduler does not implement is never ignored: it is named, and the pod is refused for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sharepod_operator.core.model import Constraints, HostPort, Requirement, SelectorTerm, Toleration
from sharepod_operator.manifest import names
from sharepod_operator.manifest.access import integer, mapping, mappings, string_pairs, text, texts

if TYPE_CHECKING:
    from sharepod_operator.manifest.records import Json

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_FOREIGN_WAYS = (names.NVIDIA_GPU, names.KOORDINATOR_PREFIX)
"""Resources that ask for GPUs past this scheduler: whole ones by the device plugin, and those of Koordinator's that
`gpu_resources` doesn't read.
"""
_BOUND_VOLUMES = (
    "awsElasticBlockStore",
    "azureDisk",
    "cinder",
    "gcePersistentDisk",
    "iscsi",
    "rbd",
    "vsphereVolume",
)
"""Disks written into the pod itself, which live in one zone or which two pods can't share; claims are looked up instead."""


def read_constraints(spec: Json, *, pinned_node: str = "") -> Constraints:
    """The constraints of a pod's spec; `pinned_node` is a wanted node where spec.nodeName is not yet a binding.

    On a Pod the wanted node of its SharePod is a required node affinity, see `render_pod`; it counts as a pin as well.
    """
    affinity = _node_affinity(spec)
    return Constraints(
        node_name=pinned_node or _only_node(affinity),
        node_selector=string_pairs(spec.get("nodeSelector")),
        node_affinity=affinity,
        tolerations=_tolerations(spec),
        host_ports=host_ports(spec),
        unsupported=unsupported(spec),
    )


def every_container(spec: Json) -> list[Json]:
    """Init containers, sidecars among them, and app containers."""
    return mappings(spec.get("initContainers")) + mappings(spec.get("containers"))


def host_ports(spec: Json) -> tuple[HostPort, ...]:
    """Ports of the node that the pod binds; on the host network every container port is one."""
    host_network = spec.get("hostNetwork") is True
    found: list[HostPort] = []
    for container in every_container(spec):
        for port in mappings(container.get("ports")):
            number = integer(port.get("hostPort")) or (integer(port.get("containerPort")) if host_network else 0)
            if number:
                found.append(HostPort(number, text(port.get("protocol")) or "TCP", text(port.get("hostIP"))))
    return tuple(found)


def unsupported(spec: Json) -> tuple[str, ...]:
    """Names of the constraints in a pod's spec that this scheduler does not implement, sorted, each once."""
    found = [*_unsupported_affinity(spec), *_unsupported_resources(spec), *_unsupported_volumes(spec)]
    if spec.get("resourceClaims"):
        found.append("resourceClaims")
    found += [key for key in ("workloadRef", "schedulingGroup") if spec.get(key)]
    system = text(mapping(spec.get("os")).get("name"))
    if system not in ("", "linux"):
        found.append(f"os.name {system}")
    for toleration in mappings(spec.get("tolerations")):
        operator = text(toleration.get("operator"))
        if operator not in ("", "Equal", "Exists"):
            found.append(f"tolerations with operator {operator}")
    return tuple(sorted({" ".join(name.split()) for name in found}))


def _unsupported_affinity(spec: Json) -> list[str]:
    found: list[str] = []
    affinity = spec.get("affinity")
    if affinity and isinstance(affinity, dict):
        kinds = ("podAffinity", "podAntiAffinity")
        found += [f"{kind} ({_REQUIRED})" for kind in kinds if mapping(affinity.get(kind)).get(_REQUIRED)]
    spread = mappings(spec.get("topologySpreadConstraints"))
    if any(constraint.get("whenUnsatisfiable") != "ScheduleAnyway" for constraint in spread):
        found.append("topologySpreadConstraints (whenUnsatisfiable: DoNotSchedule)")
    return found


def _unsupported_resources(spec: Json) -> list[str]:
    found: list[str] = []
    for holder in (spec, *every_container(spec)):
        resources = holder.get("resources")
        if not resources or not isinstance(resources, dict):
            continue
        for kind in ("requests", "limits"):
            found += [
                f"resource {key}" for key, amount in mapping(resources.get(kind)).items() if _foreign(key, amount)
            ]
        if holder is not spec and resources.get("claims"):
            found.append("resourceClaims")
    return found


def _foreign(resource: str, amount: Any) -> bool:
    """Whether this asks for a GPU past this scheduler; zero asks for nothing."""
    return (
        resource.startswith(_FOREIGN_WAYS)
        and resource not in names.KOORDINATOR_RESOURCES
        and str(amount).strip("0") != ""
    )


def _unsupported_volumes(spec: Json) -> list[str]:
    return [
        f"{kind} volume"
        for volume in mappings(spec.get("volumes"))
        for kind in _BOUND_VOLUMES
        if volume.get(kind) is not None
    ]


def _node_affinity(spec: Json) -> tuple[SelectorTerm, ...] | None:
    required = mapping(mapping(spec.get("affinity")).get("nodeAffinity")).get(_REQUIRED)
    return selector_terms(required) if isinstance(required, dict) else None


def selector_terms(selector: Json) -> tuple[SelectorTerm, ...]:
    """The terms of a NodeSelector, which are ORed."""
    return tuple(
        SelectorTerm(_requirements(term.get("matchExpressions")), _requirements(term.get("matchFields")))
        for term in mappings(selector.get("nodeSelectorTerms"))
    )


def _only_node(affinity: tuple[SelectorTerm, ...] | None) -> str:
    """The one node that every term of a required node affinity names; "" where there is no such node."""
    terms = [term for term in affinity or () if term.expressions or term.fields]  # an empty one matches nothing
    wanted = {
        field.values
        for term in terms
        for field in term.fields
        if (field.key, field.operator) == ("metadata.name", "In") and len(field.values) == 1
    }
    named = all(any(field.values in wanted for field in term.fields) for term in terms)
    return next(iter(wanted))[0] if len(wanted) == 1 and named else ""


def _requirements(value: Any) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(text(item.get("key")), text(item.get("operator")), texts(item.get("values")))
        for item in mappings(value)
    )


def _tolerations(spec: Json) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(
            key=text(item.get("key")),
            operator=text(item.get("operator")) or "Equal",
            value=text(item.get("value")),
            effect=text(item.get("effect")),
        )
        for item in mappings(spec.get("tolerations"))
    )
