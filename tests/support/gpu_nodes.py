"""The nodes of the cluster tests: eight GPUs of three kinds, and a node without any."""

from __future__ import annotations

from typing import Final

from sharepod_operator.localcluster.nodes import GIB, FakeNode, gpu_uuid, gpus_of

NODES: Final = (
    FakeNode("gpu-a", gpus_of("gpu-a", 2, 40 * GIB, "NVIDIA-A100-PCIE-40GB")),
    FakeNode("gpu-b", gpus_of("gpu-b", 4, 24 * GIB, "NVIDIA-A10")),
    FakeNode("gpu-c", gpus_of("gpu-c", 2, 80 * GIB, "NVIDIA-A100-SXM4-80GB")),
    FakeNode("cpu-a"),
)
A: Final = tuple(sorted(gpu_uuid("gpu-a", index) for index in range(2)))
B: Final = tuple(sorted(gpu_uuid("gpu-b", index) for index in range(4)))
C: Final = tuple(sorted(gpu_uuid("gpu-c", index) for index in range(2)))
"""UUIDs by node, in the order in which ties fall."""
