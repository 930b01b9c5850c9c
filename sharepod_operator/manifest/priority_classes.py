"""The priority of Pods that no API server has admitted yet, by the PriorityClasses that stand beside them in a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sharepod_operator.manifest.access import integer, mapping, text

if TYPE_CHECKING:
    from sharepod_operator.manifest.records import Json


@dataclass(frozen=True, slots=True)
class _Class:
    value: int
    policy: str = ""


def _built_in() -> dict[str, _Class]:
    return {"system-cluster-critical": _Class(2_000_000_000), "system-node-critical": _Class(2_000_001_000)}


@dataclass(slots=True)
class PriorityClasses:
    """Those of a file, beside the two that every cluster has."""

    by_name: dict[str, _Class] = field(default_factory=_built_in)
    default: _Class = _Class(0)
    unknown: set[str] = field(default_factory=set)
    """Names that Pods bear, and that nobody explains: these Pods count as having priority 0."""

    def take(self, body: Json) -> None:
        """Take in a PriorityClass."""
        found = _Class(integer(body.get("value")), text(body.get("preemptionPolicy")))
        self.by_name[text(mapping(body.get("metadata")).get("name"))] = found
        if body.get("globalDefault") is True:
            self.default = found

    def admitted(self, pod: Json) -> Json:
        """The Pod with priority and preemptionPolicy, as Kubernetes' admission would set them where they are missing."""
        spec = mapping(pod.get("spec"))
        if isinstance(spec.get("priority"), int):
            return pod
        name = text(spec.get("priorityClassName"))
        found = self.by_name.get(name) if name else self.default
        if found is None:
            self.unknown.add(name)
            return pod
        policy = spec.get("preemptionPolicy") or found.policy
        stated = {"priority": found.value, **({"preemptionPolicy": policy} if policy else {})}
        return {**pod, "spec": {**spec, **stated}}

    def note(self) -> list[str]:
        """A sentence where something is missing."""
        if not self.unknown:
            return []
        named = ", ".join(sorted(self.unknown))
        return [f"PriorityClass {named} is not in the file; pods of it count as having priority 0"]
