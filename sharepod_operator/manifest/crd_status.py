"""The schema of `status`: what the operator reports, closed, so that a field written by mistake is an error in tests.

Lists and maps that grow with the replicas are atomic: otherwise managedFields would grow with every entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharepod_operator.manifest.crd_spec import MAX_REPLICAS

if TYPE_CHECKING:
    from sharepod_operator.manifest.records import Json

CONDITION_TYPES = ("Accepted", "Scheduled", "Ready", "Progressing", "Preempted", "Degraded")


def status_schema() -> Json:
    """The schema of `status`."""
    counters = {
        "replicas": "Pods that exist and are neither finished nor being deleted.",
        "readyReplicas": "Of these, the pods that are Ready.",
        "availableReplicas": "Of these, the pods that have been Ready for minReadySeconds.",
    }
    return {
        "description": "What the operator sees and did. Written by the operator, never read back by it.",
        "type": "object",
        "properties": {
            "observedGeneration": {
                "description": "The metadata.generation that this status is about.",
                "type": "integer",
                "format": "int64",
                "minimum": 0,
            },
            **{name: _count(description) for name, description in counters.items()},
            "selector": _text("The selector of the pods as a string, for the scale subresource.", 8192),
            "conditions": _conditions(),
            "placements": _placements(),
            "summary": _text("Where the replicas are, in short: the first one's node and GPU, and how many more.", 512),
            "ports": _text("The pod-manager ports of the replicas, joined by commas.", 8192),
            "gpu": _gpu(),
            **_seed_maps(),
        },
    }


def _conditions() -> Json:
    return {
        "description": "The state in conditions; `Ready` sums them up and is what `kubectl wait` should wait for.",
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "description": "One aspect of the state.",
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {"description": "The aspect.", "type": "string", "enum": list(CONDITION_TYPES)},
                "status": {
                    "description": "Whether it holds.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "observedGeneration": {
                    "description": "The metadata.generation that this condition is about.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
                "lastTransitionTime": {
                    "description": "When the status last changed.",
                    "type": "string",
                    "format": "date-time",
                },
                "reason": {
                    "description": "Why, in one stable word.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 128,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": {"description": "Why, in one sentence.", "type": "string", "maxLength": 32768},
            },
        },
    }


def _placements() -> Json:
    return {
        "description": "Where each replica is and what it takes there.",
        "type": "array",
        "maxItems": MAX_REPLICAS,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "description": "One replica.",
            "type": "object",
            "required": ["pod"],
            "properties": {
                "pod": _text("The pod's name.", 253),
                "node": _text("The node's name.", 253),
                "gpus": {
                    "description": "The UUIDs of its GPUs.",
                    "type": "array",
                    "maxItems": 64,
                    "x-kubernetes-list-type": "atomic",
                    "items": _text("The UUID of a GPU.", 128),
                },
                "port": _port("The port of the node on which the pod manager serves this pod."),
                "request": _text("Guaranteed compute on each GPU, as a fraction with three decimals.", 16),
                "memory": _text("Memory on each GPU, in bytes; amounts that differ are joined by commas.", 256),
                "state": _text("The pod's state, such as Running or Pending.", 64),
            },
        },
    }


def _gpu() -> Json:
    return {
        "description": "The GPU request of each replica as it was understood.",
        "type": "object",
        "properties": {
            "share": _text("request/limit as fractions of a GPU, with xN for N GPUs.", 64),
            "memory": _text("Memory on each GPU; a percentage is one of each GPU's own memory.", 32),
            "source": _text("Where it was written: spec, annotations, resources, or several joined by +.", 64),
        },
    }


def _seed_maps() -> Json:
    usage = {
        "description": "What one pod takes.",
        "type": "object",
        "properties": {
            "gpu": _text("Guaranteed compute, such as 0.500, or 0.500x2 on two GPUs.", 32),
            "totalMemoryBytes": {
                "description": "Memory on all its GPUs, in bytes.",
                "type": "integer",
                "format": "int64",
                "minimum": 0,
            },
        },
    }
    device = {
        "description": "A GPU that is in use.",
        "type": "object",
        "properties": {
            "node": _text("The node's name.", 253),
            "gpu": _text("The UUIDs of the GPUs, joined by commas.", 8192),
        },
    }
    return {
        "boundDeviceIDs": _by_pod(
            "pod -> UUIDs of its GPUs, joined by commas.", _text("UUIDs, joined by commas.", 8192)
        ),
        "podManagerPort": _by_pod("pod -> its pod-manager port.", _port("A port of the node.")),
        "usage": _by_pod("pod -> what it takes.", usage),
        "pod2node": _by_pod("pod -> its node.", _text("The node's name.", 253)),
        "node2Id": _list("The GPUs in use, with their nodes.", device),
        "prewarmPool": _list("Names of pods kept warm; none in this version.", _text("The pod's name.", 253)),
    }


def _by_pod(description: str, value: Json) -> Json:
    return {
        "description": f"{description} As faas-share has it; see placements.",
        "type": "object",
        "maxProperties": MAX_REPLICAS,
        "x-kubernetes-map-type": "atomic",
        "additionalProperties": value,
    }


def _list(description: str, items: Json) -> Json:
    return {
        "description": f"{description} As faas-share has it; see placements.",
        "type": "array",
        "maxItems": MAX_REPLICAS,
        "x-kubernetes-list-type": "atomic",
        "items": items,
    }


def _text(description: str, longest: int) -> Json:
    return {"description": description, "type": "string", "maxLength": longest}


def _count(description: str) -> Json:
    return {"description": description, "type": "integer", "format": "int32", "minimum": 0}


def _port(description: str) -> Json:
    return {"description": description, "type": "integer", "format": "int32", "minimum": 0, "maximum": 65535}
