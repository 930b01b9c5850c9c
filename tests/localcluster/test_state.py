"""The state folder: what is on record, whose files are touched, who may work on it."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest
import yaml

from sharepod_operator.localcluster import lifecycle
from sharepod_operator.localcluster.access import mint_tokens, write_kubeconfig, write_tokens
from sharepod_operator.localcluster.binaries import Binaries
from sharepod_operator.localcluster.commands import children_environment
from sharepod_operator.localcluster.errors import LocalClusterError
from sharepod_operator.localcluster.state import ClusterOptions, Record, StateFolder, User, default_state_folder

ALICE = User("alice", ("team-a", "dev"))


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path / "one")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def record(**options: object) -> Record:
    return Record(ClusterOptions(**options), 1001, 1002, 1003, {"admin": "t"}, "boot")  # type: ignore[arg-type]


def test_the_folder_follows_xdg_and_falls_back_to_home() -> None:
    assert Path("/state/sharepod-operator/demo") == default_state_folder("demo", {"XDG_STATE_HOME": "/state"}).root
    assert Path("/h/.local/state/sharepod-operator/demo") == default_state_folder("demo", {"HOME": "/h"}).root


def test_a_record_comes_back_as_it_was_saved(folder: StateFolder) -> None:
    folder.prepare()
    saved = record(port=6443, audit=True, users=(ALICE,), client_qps=50)
    folder.save(saved)
    assert saved == folder.load()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"options": {"users": [], "unknown": 1}}', '{"options": {"users": []}}']
)
def test_a_record_that_is_not_ours_is_none(text: str, folder: StateFolder) -> None:
    """Cut short, or written by another version: the next start begins anew instead of failing."""
    folder.prepare()
    (folder.root / "cluster.json").write_text(text)
    assert folder.load() is None


def test_secrets_are_readable_for_their_owner_alone(folder: StateFolder) -> None:
    folder.prepare()
    folder.save(record())
    write_tokens(folder, (), mint_tokens((), {}))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (folder.root / "cluster.json", folder.tokens)}
    assert {0o600} == modes
    assert 0o700 == stat.S_IMODE(folder.root.stat().st_mode)


def test_somebody_elses_folder_is_refused(tmp_path: Path) -> None:
    """`--state-dir ~` must neither fill nor later empty a home."""
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(LocalClusterError, match="is not empty and no state folder of a control plane"):
        StateFolder(tmp_path).prepare()
    assert ["thesis.tex"] == names(tmp_path)


def test_a_folder_left_by_a_start_that_was_cut_short_is_taken(folder: StateFolder) -> None:
    folder.prepare()
    folder.prepare()
    assert not folder.exists()


def test_down_removes_only_what_up_made(folder: StateFolder) -> None:
    folder.prepare()
    folder.save(record())
    (folder.root / "notes.txt").write_text("mine")
    assert lifecycle.down(folder)
    assert ["notes.txt"] == names(folder.root)
    assert not lifecycle.down(folder)
    assert ["one"] == names(folder.root.parent)


def test_only_one_process_at_a_time_may_start_or_stop(folder: StateFolder) -> None:
    """The second is told so at once; after the first nothing is left of the lock."""
    with (
        folder.locked(),
        pytest.raises(LocalClusterError, match=f"another process is starting or stopping .* in {folder.root}"),
    ):
        lifecycle.down(folder)
    assert not lifecycle.down(folder)
    assert [] == names(folder.root.parent)


def test_a_taken_port_that_was_asked_for_is_an_error(folder: StateFolder) -> None:
    """Nothing is started for it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LocalClusterError) as caught:
            lifecycle.up(folder, Binaries({}), ClusterOptions(port=port))
    assert f"port {port} is taken by another process: choose another one, or none to get a free one" == str(
        caught.value
    )


def test_ports_are_kept_over_a_restart_while_they_are_free() -> None:
    """A kubeconfig that somebody exported stays valid."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        free, taken = one.getsockname()[1], two.getsockname()[1]
        one.close()
        old = Record(ClusterOptions(), free, free, free, {}, "boot")
        assert (free, free, free) == lifecycle._ports(ClusterOptions(), old)
        old = Record(ClusterOptions(), free, taken, free, {}, "boot")
        assert taken not in lifecycle._ports(ClusterOptions(), old)
    assert 3 == len(set(lifecycle._ports(ClusterOptions(), None)))


def test_tokens_are_kept_and_names_are_unique() -> None:
    tokens = mint_tokens((ALICE,), {"alice": "old", "bob": "gone"})
    assert "old" == tokens["alice"]
    assert {"admin", "alice", "kwok", "system:kube-controller-manager", "system:kube-scheduler"} == set(tokens)
    assert 5 == len(set(tokens.values()))
    with pytest.raises(LocalClusterError, match="user 'admin' is named twice or reserved"):
        mint_tokens((User("admin"),), {})


def test_the_token_file_names_users_with_their_groups(folder: StateFolder) -> None:
    folder.prepare()
    tokens = mint_tokens((ALICE,), {"admin": "a", "alice": "b"})
    write_tokens(folder, (ALICE,), tokens)
    lines = folder.tokens.read_text().splitlines()
    assert 'a,admin,admin,"system:masters"' == lines[0]
    assert 'b,alice,alice,"team-a,dev"' == lines[-1]


def test_a_kubeconfig_needs_no_other_file(folder: StateFolder) -> None:
    folder.prepare()
    folder.certificate.write_text("PEM")
    config = yaml.safe_load(write_kubeconfig(folder.kubeconfig, folder, "https://127.0.0.1:1", "secret").read_text())
    assert {"server": "https://127.0.0.1:1", "certificate-authority-data": "UEVN"} == config["clusters"][0]["cluster"]
    assert {"token": "secret"} == config["users"][0]["user"]
    assert "one" == config["current-context"] == config["contexts"][0]["name"]


def test_children_see_nothing_of_the_users_settings(folder: StateFolder) -> None:
    env = {"HOME": "/home/me", "KUBECONFIG": "/home/me/.kube/config", "HTTPS_PROXY": "http://proxy", "PATH": "/bin"}
    assert {"HOME": str(folder.root / "home"), "PATH": "/bin", "TMPDIR": "/tmp"} == children_environment(folder, env)
