"""A SharePod's nodeName becomes an affinity on its Pods, and the scheduler reads it back as the pin that it was."""

from __future__ import annotations

from typing import Any

import pytest

from sharepod_operator.manifest.constraints import read_constraints
from sharepod_operator.manifest.render import render_pod
from sharepod_operator.manifest.sharepod import read_sharepod

A = {"key": "metadata.name", "operator": "In", "values": ["gpu-a"]}
B = {"key": "metadata.name", "operator": "In", "values": ["gpu-b"]}
EITHER = {"key": "metadata.name", "operator": "In", "values": ["gpu-a", "gpu-b"]}
NOT_A = {"key": "metadata.name", "operator": "NotIn", "values": ["gpu-a"]}
ZONE = [{"key": "zone", "operator": "In", "values": ["one"]}]


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


@pytest.mark.parametrize("own", [{}, {"affinity": affinity({"matchExpressions": ZONE}, {"matchFields": [EITHER]})}])
def test_a_rendered_node_name_is_a_pin(own: dict[str, Any]) -> None:
    """Also beside an affinity of the user's own; so a virtual GPU's name, which needs the node, works."""
    spec = {"podSpec": {"nodeName": "gpu-a", "containers": [{"name": "c", "image": "i"}], **own}}
    pod = render_pod(read_sharepod({"metadata": {"name": "x", "uid": "u"}, "spec": spec}), "x-00000")
    assert "gpu-a" == read_constraints(pod["spec"]).node_name


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([{"matchFields": [A]}, {"matchFields": [A], "matchExpressions": ZONE}], "gpu-a"),
        ([{"matchFields": [A]}, {}], "gpu-a"),
        ([{"matchFields": [A]}, {"matchExpressions": ZONE}], ""),
        ([{"matchFields": [A]}, {"matchFields": [B]}], ""),
        ([{"matchFields": [EITHER]}], ""),
        ([{"matchFields": [NOT_A]}], ""),
        ([{}], ""),
        ([], ""),
    ],
)
def test_an_affinity_is_a_pin_only_if_every_term_names_that_node(terms: list[dict[str, Any]], expected: str) -> None:
    """An empty term matches nothing and so allows no other node."""
    assert expected == read_constraints({"affinity": affinity(*terms)}).node_name
