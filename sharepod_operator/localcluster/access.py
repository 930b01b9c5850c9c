"""Who may talk to the API server: tokens, and kubeconfigs that carry them. The user's own kubeconfig is never involved."""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING, Final

import yaml

from sharepod_operator.localcluster.commands import kubeconfig_for
from sharepod_operator.localcluster.errors import LocalClusterError
from sharepod_operator.localcluster.state import StateFolder, User, write_private

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

ADMIN: Final = User("admin", ("system:masters",))
COMPONENTS: Final = (
    # Alone, the controller-manager's own role covers only what its controllers share; here it works for all of them.
    User("system:kube-controller-manager", ("system:masters",)),
    User("system:kube-scheduler"),
    User("kwok", ("system:masters",)),
)


def mint_tokens(users: Iterable[User], known: Mapping[str, str]) -> dict[str, str]:
    """A token for everybody; who already has one keeps it, so that a kubeconfig outlives a restart."""
    names = [user.name for user in (ADMIN, *COMPONENTS, *users)]
    doubled = {name for name in names if names.count(name) > 1}
    if doubled:
        raise LocalClusterError(f"user {min(doubled)!r} is named twice or reserved: choose another name")
    return {name: known.get(name) or secrets.token_hex(24) for name in names}


def write_tokens(folder: StateFolder, users: Iterable[User], tokens: Mapping[str, str]) -> None:
    """The file that kube-apiserver reads at its start: token, name, uid, groups."""
    lines = [
        f'{tokens[user.name]},{user.name},{user.name},"{",".join(user.groups)}"'
        for user in (ADMIN, *COMPONENTS, *users)
    ]
    write_private(folder.tokens, "\n".join(lines) + "\n")


def write_kubeconfigs(folder: StateFolder, server: str, tokens: Mapping[str, str]) -> None:
    """One kubeconfig for everybody with a token; needs the API server's certificate."""
    for name, token in tokens.items():
        write_kubeconfig(kubeconfig_for(folder, name), folder, server, token)


def write_kubeconfig(path: Path, folder: StateFolder, server: str, token: str) -> Path:
    """A kubeconfig with one context and everything that it needs inside. Returns its path."""
    name = folder.root.name
    authority = base64.b64encode(folder.certificate.read_bytes()).decode()
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": authority}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    write_private(path, yaml.safe_dump(content, sort_keys=False))
    return path
