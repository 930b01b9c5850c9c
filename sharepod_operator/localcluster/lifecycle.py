"""Starts, finds again and stops a local control plane."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sharepod_operator.localcluster.access import mint_tokens, write_kubeconfigs, write_tokens
from sharepod_operator.localcluster.client import Client
from sharepod_operator.localcluster.cluster import START_TIMEOUT, Cluster
from sharepod_operator.localcluster.commands import children_environment, command, write_configuration
from sharepod_operator.localcluster.errors import LocalClusterError
from sharepod_operator.localcluster.processes import boot_id, start, stop, wait_until
from sharepod_operator.localcluster.progress import Report, silent
from sharepod_operator.localcluster.state import START_ORDER, ClusterOptions, Record, StateFolder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sharepod_operator.localcluster.binaries import Binaries
    from sharepod_operator.localcluster.programs import Program

_PORT_ATTEMPTS: Final = 3
_PORT_TAKEN: Final = "address already in use"
_PATIENCE: Final = 5.0
"""Seconds that running processes may take to say that they are ready."""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    name: str
    pid: int | None
    log: Path


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """What runs of a control plane: `pid` is None for a process that has ended; `ready` is the API server's own word."""

    processes: tuple[ProcessStatus, ...]
    server: str
    ready: bool


def up(
    folder: StateFolder,
    binaries: Binaries,
    options: ClusterOptions | None = None,
    *,
    env: Mapping[str, str] | None = None,
    report: Report = silent,
) -> Cluster:
    """A ready control plane in this folder: the running one if it is healthy and has these options, else started; what
    an earlier run stored is kept, what is left of its processes is stopped. Calling it twice changes nothing.

    Raises:
        LocalClusterError: a program ended or never got ready, a port is taken, or another process is at it.
    """
    options = options or ClusterOptions()
    with folder.locked():
        folder.prepare()
        old = folder.load()
        if old is not None and _same(old.options, options):
            running = find(folder, old)
            if running is not None:
                report("the control plane is running already")
                return running
        if any(process.identity() for process in folder.processes()):
            report("cleaning up after an earlier run")
        _stop_all(folder)
        if old is None or (old.boot_id != boot_id() and not old.options.fsync):
            # Without fsync a data directory doesn't survive the machine; after a reboot it can't be trusted.
            folder.forget_data()
            old = None
        return _start(folder, binaries, options, old, os.environ if env is None else env)


def find(folder: StateFolder, record: Record | None = None) -> Cluster | None:
    """The control plane that runs in this folder, or None when it is not whole and healthy."""
    record = record or folder.load()
    if record is None or processes_ended(folder):
        return None
    cluster = Cluster(folder, record, _client(folder, record))
    # On a busy machine a healthy API server now and then fails one of its checks.
    deadline = time.monotonic() + _PATIENCE
    while not cluster.client.is_ready():
        if time.monotonic() > deadline or processes_ended(folder):
            return None
        time.sleep(0.1)
    return cluster


def processes_ended(folder: StateFolder) -> bool:
    """Whether any of the processes is not running."""
    return any(process.running() is None for process in folder.processes())


def status(folder: StateFolder) -> ClusterStatus | None:
    """What runs in this folder; None when no control plane was ever started there, or it was taken down."""
    record = folder.load()
    if record is None:
        return None
    processes = tuple(
        ProcessStatus(process.name, identity.pid if (identity := process.running()) else None, process.log)
        for process in (*folder.processes(), *folder.companions())
    )
    ready = processes[1].pid is not None and _client(folder, record).is_ready()
    return ClusterStatus(processes, record.server, ready)


def down(folder: StateFolder) -> bool:
    """Stops everything, clients before servers, and removes the state. False when there was nothing to do."""
    with folder.locked():
        if not folder.exists():
            return False
        _stop_all(folder)
        folder.remove()
        return True


def halt(folder: StateFolder) -> None:
    """Stops everything and keeps the state: the next `up` goes on with it."""
    with folder.locked():
        _stop_all(folder)


def _start(
    folder: StateFolder, binaries: Binaries, options: ClusterOptions, old: Record | None, env: Mapping[str, str]
) -> Cluster:
    tokens = mint_tokens(options.users, old.tokens if old else {})
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        record = Record(options, *_ports(options, old if attempt == 1 else None), tokens, boot_id())
        folder.save(record)
        write_configuration(folder, record)
        write_tokens(folder, options.users, tokens)
        try:
            return _start_programs(folder, binaries, record, env)
        except LocalClusterError as error:
            _stop_all(folder)
            if _PORT_TAKEN not in str(error) or attempt == _PORT_ATTEMPTS:
                if old is None:
                    raise
                hint = "what an earlier run stored may be damaged: take the control plane down and up again to start afresh"
                raise LocalClusterError(f"{error}; {hint}") from error
            if options.port is not None:
                _require_free(options.port)
        except BaseException:
            _stop_all(folder)
            raise
    raise AssertionError("unreachable: the last attempt returns or raises")


def _start_programs(folder: StateFolder, binaries: Binaries, record: Record, env: Mapping[str, str]) -> Cluster:
    environment = children_environment(folder, env)

    def launch(program: Program) -> None:
        line = command(program, binaries[program], folder, record)
        start(folder.process(program), line, env=environment, tethered=record.options.tethered)

    servers, clients = START_ORDER[:2], START_ORDER[2:]
    for program in servers:
        launch(program)
    # kube-apiserver makes its certificate before it listens; nothing can be asked securely without it.
    processes = folder.processes()
    wait_until(processes[:2], "making the API server's certificate", folder.certificate.exists, START_TIMEOUT)
    cluster = Cluster(folder, record, _client(folder, record))
    wait_until(processes[:2], "starting the API server", cluster.client.is_ready, START_TIMEOUT)
    write_kubeconfigs(folder, record.server, record.tokens)  # before that the certificate may be half written
    # The kwok of an earlier run holds its nodes' leases: the new one would leave the nodes alone until they expire.
    cluster.client.request("DELETE", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
    for program in clients:
        launch(program)
    cluster.wait_ready()
    return cluster


def _stop_all(folder: StateFolder) -> None:
    for process in (*folder.companions(), *reversed(folder.processes())):
        stop(process)


def _client(folder: StateFolder, record: Record) -> Client:
    return Client(record.server, folder.certificate, record.tokens["admin"])


def _same(old: ClusterOptions, new: ClusterOptions) -> bool:
    """Whether a running control plane serves: an unnamed port is served by any."""
    return old == (replace(new, port=old.port) if new.port is None else new)


def _ports(options: ClusterOptions, old: Record | None) -> tuple[int, int, int]:
    """Ports for etcd's clients, its peers and the API server: the old ones while they are free, so that kubeconfigs stay valid."""
    if options.port is not None:
        _require_free(options.port)
    before = (old.etcd_port, old.peer_port, options.port or old.api_port) if old else None
    if before is not None and all(_is_free(port) for port in before):
        return before
    sockets = [socket.socket() for _ in range(3)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        etcd, peer, api = (each.getsockname()[1] for each in sockets)
    finally:
        for each in sockets:
            each.close()
    return etcd, peer, options.port or api


def _require_free(port: int) -> None:
    if not _is_free(port):
        raise LocalClusterError(
            f"port {port} is taken by another process: choose another one, or none to get a free one"
        )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
