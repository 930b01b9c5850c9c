"""An operator that also serves Koordinator's scheduler name, as an administrator would set it up."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from sharepod_operator.manifest import names
from tests.support.operator_process import OperatorProcess
from tests.support.rights import NAMESPACE, operator_kubeconfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sharepod_operator.localcluster.cluster import Cluster

_CONFIG = f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}/configmaps/{names.POLICY_CONFIG_MAP}"
_SCHEDULERS = f"{names.SCHEDULER_NAME},koord-scheduler"


@contextlib.contextmanager
def serving_koordinator(cluster: Cluster, folder: Path) -> Iterator[OperatorProcess]:
    """It leads, with the rights of its service account, and in the end it stops without a complaint."""
    cluster.client.patch(_CONFIG, {"data": {"schedulers": _SCHEDULERS}})
    with OperatorProcess(
        operator_kubeconfig(cluster),
        folder,
        lease_namespace=NAMESPACE,
        lease_name=folder.name,
        scheduler_names=_SCHEDULERS,
    ) as running:
        running.wait_leading()
        yield running
        assert running.stop() == 0, running.tail()
        assert running.complaints() == []
    cluster.client.patch(_CONFIG, {"data": {"schedulers": names.SCHEDULER_NAME}})
