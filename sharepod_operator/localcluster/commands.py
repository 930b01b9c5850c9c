"""The command line and the configuration files of each program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from sharepod_operator.localcluster.programs import Program
from sharepod_operator.localcluster.state import Record, StateFolder, write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KWOK_LABEL: Final = "kwok.x-k8s.io/node"
KWOK_LABEL_VALUE: Final = "fake"
"""kwok plays the kubelet of every node with this label; without it a node's kubelet is dead."""

_STAGES: Final = Path(__file__).parent / "stages"


def kubeconfig_for(folder: StateFolder, user: str) -> Path:
    """The kubeconfig of a user or component; `admin` has the one that people are shown."""
    return folder.kubeconfig if user == "admin" else folder.folder("users") / f"{user.replace(':', '-')}.kubeconfig"


def write_configuration(folder: StateFolder, record: Record) -> None:
    """Everything that a program reads at its start besides its command line and kubeconfig."""
    config = folder.folder("config")
    scheduler = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": str(kubeconfig_for(folder, "system:kube-scheduler")),
            "qps": record.options.client_qps,
            "burst": 2 * record.options.client_qps,
        },
    }
    audit = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}],
    }
    _write_yaml(config / "scheduler.yaml", scheduler)
    _write_yaml(config / "audit-policy.yaml", audit)


def command(program: Program, binary: Path, folder: StateFolder, record: Record) -> list[str]:
    """The whole command line of one program."""
    return [str(binary), *_ARGUMENTS[program](folder, record)]


def children_environment(folder: StateFolder, env: Mapping[str, str]) -> dict[str, str]:
    """What the programs see of the caller's environment: nothing of his kubeconfig, home, proxies or settings."""
    return {"HOME": str(folder.folder("home")), "PATH": env.get("PATH", ""), "TMPDIR": env.get("TMPDIR", "/tmp")}  # noqa: S108


def _etcd(folder: StateFolder, record: Record) -> list[str]:
    client, peer = (f"http://127.0.0.1:{port}" for port in (record.etcd_port, record.peer_port))
    arguments = [
        "--name=local",
        f"--data-dir={folder.folder('etcd') / 'data'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=local={peer}",
        "--quota-backend-bytes=4294967296",
        "--log-level=warn",
    ]
    return arguments if record.options.fsync else [*arguments, "--unsafe-no-fsync"]


def _api_server(folder: StateFolder, record: Record) -> list[str]:
    arguments = [
        f"--etcd-servers=http://127.0.0.1:{record.etcd_port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={record.api_port}",
        f"--cert-dir={folder.certificate.parent}",
        f"--token-auth-file={folder.tokens}",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={folder.key}",
        f"--service-account-key-file={folder.key}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--endpoint-reconciler-type=none",
        "--allow-privileged=true",
    ]
    if record.options.audit:
        policy = folder.folder("config") / "audit-policy.yaml"
        arguments += [
            f"--audit-policy-file={policy}",
            f"--audit-log-path={folder.audit_log}",
            "--audit-log-mode=blocking",
        ]
    return arguments


def _controller_manager(folder: StateFolder, record: Record) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig_for(folder, 'system:kube-controller-manager')}",
        "--leader-elect=false",
        "--secure-port=0",
        # The one left out writes to every node how long its kubelet may cache Secrets.
        "--controllers=*,-ttl-controller",
        f"--root-ca-file={folder.certificate}",
        f"--service-account-private-key-file={folder.key}",
        f"--kube-api-qps={record.options.client_qps}",
        f"--kube-api-burst={2 * record.options.client_qps}",
    ]


def _scheduler(folder: StateFolder, _: Record) -> list[str]:
    return [f"--config={folder.folder('config') / 'scheduler.yaml'}", "--secure-port=0"]


def _kwok(folder: StateFolder, _: Record) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig_for(folder, 'kwok')}",
        *(f"--config={stage}" for stage in sorted(_STAGES.glob("*.yaml"))),
        f"--manage-nodes-with-label-selector={KWOK_LABEL}={KWOK_LABEL_VALUE}",
        "--node-lease-duration-seconds=40",
        "--cidr=10.244.0.0/16",
    ]


_ARGUMENTS: Final[Mapping[Program, Callable[[StateFolder, Record], list[str]]]] = {
    Program.ETCD: _etcd,
    Program.API_SERVER: _api_server,
    Program.CONTROLLER_MANAGER: _controller_manager,
    Program.SCHEDULER: _scheduler,
    Program.KWOK: _kwok,
}


def _write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    write_private(path, yaml.safe_dump(dict(content), sort_keys=False))
