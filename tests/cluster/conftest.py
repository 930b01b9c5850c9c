"""A real control plane for the tests of this folder: one for each test process, ended with it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sharepod_operator.localcluster import lifecycle
from sharepod_operator.localcluster.binaries import Binaries, find_or_build
from sharepod_operator.localcluster.errors import ApiError
from sharepod_operator.localcluster.programs import CONTROL_PLANE, Program
from sharepod_operator.localcluster.state import ClusterOptions, StateFolder, User
from tests.support.rights import refused

if TYPE_CHECKING:
    from sharepod_operator.localcluster.cluster import Cluster
    from sharepod_operator.localcluster.nodes import FakeNode

ALICE = User("alice", ("team-a",))
BOB = User("bob", ("team-b",))

AddNodes = Callable[..., None]

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the control plane."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds what is missing before the first test, whose time limit is not meant for minutes of compiling."""
    if session.config.option.collectonly or not any(item.get_closest_marker("cluster") for item in session.items):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext():
        find_or_build((*CONTROL_PLANE, Program.KUBECTL))


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    return find_or_build((*CONTROL_PLANE, Program.KUBECTL))


@pytest.fixture(scope="session")
def cluster(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A ready control plane with the CRDs, without nodes, with an audit log and the users alice and bob."""
    folder = StateFolder(tmp_path_factory.mktemp("cluster") / "state")
    started = lifecycle.up(folder, binaries, ClusterOptions(audit=True, users=(ALICE, BOB), tethered=True))
    started.apply_crds()
    started.apply_policies()
    yield started
    missing = refused(started.audit_log)
    started.client.close()
    lifecycle.down(folder)
    assert {} == missing, "the operator has asked for what its role in manifests/ does not allow"


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own in which pods can be created; it is deleted afterwards."""
    name = f"test-{next(_numbers)}"
    cluster.add_namespace(name)
    yield name
    cluster.client.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def add_nodes(cluster: Cluster) -> Iterator[AddNodes]:
    """Creates fake nodes that are Ready, and removes them after the test."""
    names: list[str] = []

    def add(*nodes: FakeNode) -> None:
        names.extend(node.name for node in nodes)
        cluster.add_nodes(nodes)

    yield add
    for name in names:
        with contextlib.suppress(ApiError):
            cluster.remove_node(name)
