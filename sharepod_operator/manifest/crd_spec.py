"""The schema of `spec`: what a person may write into a SharePod, with the sentence that answers what they may not.

Amounts of `spec.gpu` have no defaults here, since a field left out may still be filled by KubeShare's annotations;
defaults come last, when the request is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharepod_operator.core.request import MAX_DEVICE_IDS, MAX_TAG_LENGTH

if TYPE_CHECKING:
    from sharepod_operator.manifest.records import Json

MAX_REPLICAS = 1000
MAX_NAME = 57
MAX_GPUS = 64
"""More GPUs than any node has; a bound keeps the cost of the rules below known to the API server."""
MAX_DEVICE_ID = 64

QUANTITY = r"^([0-9]+([.][0-9]*)?|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})?$"


def spec_schema() -> Json:
    """The schema of `spec`."""
    return {
        "description": "What to run, how often, and how much of a GPU each replica takes.",
        "type": "object",
        "required": ["podSpec"],
        "properties": {
            "replicas": {
                "description": (
                    "How many pods to keep, 0 to 1000. The label com.openfaas.scale.min on the SharePod raises the "
                    "number that is kept, without changing this field; 0 stays 0."
                ),
                "type": "integer",
                "format": "int32",
                "minimum": 0,
                "maximum": MAX_REPLICAS,
                "default": 1,
            },
            "minReadySeconds": {
                "description": "How long a pod has to be Ready before it counts as available, in seconds.",
                "type": "integer",
                "format": "int32",
                "minimum": 0,
                "maximum": 86400,
                "default": 0,
            },
            "selector": _selector(),
            "gpu": _gpu(),
            "podSpec": _pod_spec(),
        },
        "x-kubernetes-validations": [
            {
                "rule": "has(self.selector) == has(oldSelf.selector)",
                "message": "selector can be neither added nor removed once the SharePod exists",
                "fieldPath": ".selector",
                "reason": "FieldValueForbidden",
            }
        ],
    }


def _gpu() -> Json:
    return {
        "description": (
            "What each replica takes of a GPU. Left out, the SharePod asks for no GPU, unless KubeShare's annotations "
            "(kubeshare/gpu_request, gpu_limit, gpu_mem, ...) say so. A field left out is filled by its annotation."
        ),
        "type": "object",
        "properties": {
            "request": {
                "description": (
                    "Guaranteed compute as a fraction of one GPU, 0 to 1, rounded up to a thousandth. The requests on "
                    "a GPU never add up to more than 1. 0 is best effort: nothing is guaranteed, and limit is needed. "
                    "Needed, here or as the annotation kubeshare/gpu_request."
                ),
                "type": "number",
                "minimum": 0,
                "maximum": 1,
            },
            "limit": {
                "description": (
                    "Compute that the replica may use when others leave it free, above 0 and up to 1, at least the "
                    "request. Default: the annotation kubeshare/gpu_limit, else the request."
                ),
                "type": "number",
                "minimum": 0,
                "exclusiveMinimum": True,
                "maximum": 1,
            },
            "memory": _memory(),
            "count": {
                "description": (
                    "Number of GPUs, all of one node; request, limit and memory are taken of each of them. Default: 1."
                ),
                "type": "integer",
                "format": "int32",
                "minimum": 1,
                "maximum": MAX_GPUS,
            },
            "affinity": _tag("Joins only GPUs that already carry this affinity tag, or opens an idle one."),
            "antiAffinity": _tag("Never shares a GPU with a pod that carries the same antiAffinity tag."),
            "exclusion": _tag(
                "Shares a GPU only with pods of exactly the same exclusion tag; no tag is a tag of its own."
            ),
            "deviceIDs": {
                "description": "The only GPUs allowed, by UUID as the node's inventory lists them. Left out or empty: any.",
                "type": "array",
                "maxItems": MAX_DEVICE_IDS,
                "x-kubernetes-list-type": "set",
                "items": {
                    "description": "The UUID of a GPU, such as GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": MAX_DEVICE_ID,
                },
            },
        },
        "x-kubernetes-validations": [
            {
                "rule": "!has(self.request) || !has(self.limit) || self.limit >= self.request",
                "message": "gpu.limit must be at least gpu.request",
                "fieldPath": ".limit",
            },
            {
                "rule": "!has(self.request) || self.request != 0.0 || has(self.limit)",
                "message": "gpu.request 0 is best effort and needs gpu.limit, which can't default to 0",
                "fieldPath": ".limit",
                "reason": "FieldValueRequired",
            },
            {
                "rule": "!has(self.deviceIDs) || size(self.deviceIDs) == 0 || (has(self.count) ? self.count : 1) <= size(self.deviceIDs)",
                "message": "gpu.deviceIDs must name at least gpu.count GPUs",
                "fieldPath": ".deviceIDs",
            },
        ],
    }


def _memory() -> Json:
    return {
        "description": (
            "GPU memory on each GPU, in bytes or as a quantity such as 10Gi. The memory of all pods on a GPU never adds "
            "up to more than the GPU has. Default: the annotation kubeshare/gpu_mem, else 0."
        ),
        "x-kubernetes-int-or-string": True,
        "maxLength": 32,
        "x-kubernetes-validations": [
            {
                "rule": f"string(self).matches('{QUANTITY}') && isQuantity(string(self))",
                "message": "gpu.memory must be a number of bytes or a quantity such as 10Gi or 512Mi, 0 or more",
            }
        ],
    }


def _tag(meaning: str) -> Json:
    return {"description": f"{meaning} Empty means no tag.", "type": "string", "maxLength": MAX_TAG_LENGTH}


def _selector() -> Json:
    value = {"description": "The value of a label.", "type": "string", "maxLength": 63}
    return {
        "description": (
            "Which pods belong to the SharePod, for `kubectl scale` and autoscalers. It can't be changed and must match "
            "the labels of the pods. Default: faasshare.tum/sharepod=<name>."
        ),
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {
                "description": "Labels that a pod has to carry.",
                "type": "object",
                "maxProperties": 32,
                "additionalProperties": dict(value),
            },
            "matchExpressions": {
                "description": "Conditions on labels that all have to hold.",
                "type": "array",
                "maxItems": 16,
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "description": "One condition on a label.",
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": {"description": "The label's key.", "type": "string", "maxLength": 317},
                        "operator": {
                            "description": "How the label relates to the values.",
                            "type": "string",
                            "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                        },
                        "values": {
                            "description": "The values, for In and NotIn.",
                            "type": "array",
                            "maxItems": 32,
                            "x-kubernetes-list-type": "atomic",
                            "items": value,
                        },
                    },
                },
            },
        },
        "x-kubernetes-validations": [
            {
                "rule": "self == oldSelf",
                "message": "selector can't be changed; delete the SharePod and create it anew",
                "reason": "FieldValueForbidden",
            }
        ],
    }


def _pod_spec() -> Json:
    return {
        "description": (
            "The spec of each pod, as in a Deployment's template. It is checked in full when the first pod is created; "
            "what is wrong then stands in the condition Accepted. See `kubectl explain pod.spec`."
        ),
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "required": ["containers"],
        "properties": {
            "containers": {
                "description": "The containers of each pod.",
                "type": "array",
                "minItems": 1,
                "maxItems": 128,
                "items": {
                    "description": "A container, see `kubectl explain pod.spec.containers`.",
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": True,
                    "required": ["name"],
                    "properties": {
                        "name": {
                            "description": "The container's name, unique in the pod.",
                            "type": "string",
                            "minLength": 1,
                            "maxLength": 63,
                        }
                    },
                },
            },
            "nodeName": {
                "description": "The only node allowed. It becomes a required node affinity, so that the pod is still placed.",
                "type": "string",
                "maxLength": 253,
            },
            "priorityClassName": {
                "description": "The PriorityClass: pods of higher priority are placed first.",
                "type": "string",
                "maxLength": 253,
            },
        },
    }
