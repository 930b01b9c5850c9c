"""Every name that the project shares with the outside: groups, labels, annotations, prefixes. Nothing is spelled twice."""

from __future__ import annotations

GROUP = "faasshare.tum"
VERSION = "v1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "SharePod"
PLURAL = "sharepods"
SINGULAR = "sharepod"
SHORT_NAME = "shp"
CATEGORIES = ("all", "gpushare")
CRD_NAME = f"{PLURAL}.{GROUP}"

SCHEDULER_NAME = "sharepod-scheduler"
CONTROLLER_NAME = f"{GROUP}/sharepod-operator"
LEASE_NAME = "sharepod-operator"

OPERATOR_NAMESPACE = "sharepod-system"
OPERATOR_USER = f"system:serviceaccount:{OPERATOR_NAMESPACE}:sharepod-operator"
POLICY_CONFIG_MAP = "sharepod-policy"
"""The parameter of the admission policies: whom we serve, who may write the ledger, the runtime class of GPU pods."""

# Requests as KubeShare and faas-share write them, on SharePods and Pods.
KUBESHARE_PREFIX = "kubeshare/"
KUBESHARE_REQUEST = "kubeshare/gpu_request"
KUBESHARE_LIMIT = "kubeshare/gpu_limit"
KUBESHARE_MEMORY = "kubeshare/gpu_mem"
KUBESHARE_GPU_ID = "kubeshare/GPUID"
KUBESHARE_AFFINITY = "kubeshare/sched_affinity"
KUBESHARE_ANTI_AFFINITY = "kubeshare/sched_anti-affinity"
KUBESHARE_EXCLUSION = "kubeshare/sched_exclusion"
KUBESHARE_AMOUNTS = (KUBESHARE_REQUEST, KUBESHARE_LIMIT, KUBESHARE_MEMORY)
KUBESHARE_REQUEST_KEYS = (
    *KUBESHARE_AMOUNTS,
    KUBESHARE_GPU_ID,
    KUBESHARE_AFFINITY,
    KUBESHARE_ANTI_AFFINITY,
    KUBESHARE_EXCLUSION,
)

# Annotations of ours on a Pod. The Binding writes the first five; env vars read the plain strings by fieldRef.
ALLOCATION = f"{GROUP}/allocation"
GPU_UUIDS = f"{GROUP}/gpu-uuids"
POD_MANAGER_PORT = f"{GROUP}/pod-manager-port"
POD_MANAGER_IP = f"{GROUP}/pod-manager-ip"
CLIENT_ID = f"{GROUP}/client-id"
NOMINATION = f"{GROUP}/nomination"
"""JSON on a preemptor: the room promised to it, and who has to leave for it."""
GPU_REQUEST = f"{GROUP}/gpu-request"
"""JSON of the GPURequest that the controller read from the SharePod, so that the scheduler reads one form on every Pod."""
TEMPLATE_HASH = f"{GROUP}/template-hash"
REPLICA = f"{GROUP}/replica"
"""`<ordinal>.<incarnation>.<losses>`: which replica of its SharePod the Pod is, how many Pods that replica had before,
and how many of these were lost in a row."""

# Annotations of a Node.
GPU_INVENTORY = f"{GROUP}/gpu-inventory"
CORDONED_GPUS = f"{GROUP}/cordoned-gpus"
KUBESHARE_GPU_INFO = "kubeshare/gpu_info"

# Labels of a Pod made for a SharePod.
LABEL_SHAREPOD = f"{GROUP}/sharepod"
LABEL_CONTROLLER = "controller"
LABEL_APP = "app"
LABEL_FAAS_FUNCTION = "faas_function"

LABEL_MIN_REPLICAS = "com.openfaas.scale.min"
POD_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

BY_SCHEDULER = "PreemptionByScheduler"
"""Reason of the condition DisruptionTarget, which Jobs' podFailurePolicy reads."""
CONFIG_MIRROR = "kubernetes.io/config.mirror"
"""On the API server's copy of a static pod, which the kubelet runs whatever happens to the copy."""
NVIDIA_GPU = "nvidia.com/gpu"
KOORDINATOR_PREFIX = "koordinator.sh/"
KOORDINATOR_RESOURCES = tuple(
    f"{KOORDINATOR_PREFIX}{name}" for name in ("gpu", "gpu-core", "gpu-memory", "gpu-memory-ratio")
)
"""Container resources that ask for GPUs: percent of both, percent of compute, bytes of memory, percent of memory."""
