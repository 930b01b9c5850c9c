"""Runs kubectl against one cluster, and shows what a person would have typed and seen."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import typer

from sharepod_operator.localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from pathlib import Path


class Kubectl:
    """One kubectl with one kubeconfig and one cache, so that nothing of the user's is read or written."""

    def __init__(self, program: Path, kubeconfig: Path, cache: Path) -> None:
        self._command = [str(program), "--kubeconfig", str(kubeconfig), "--cache-dir", str(cache)]

    def run(self, *arguments: str) -> str:
        """What it prints.

        Raises:
            LocalClusterError: it failed; with what it said.
        """
        done = self._done(arguments)
        if done.returncode != 0:
            raise LocalClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout.rstrip()

    def show(self, *arguments: str) -> str:
        """The same, and prints both the command and its output."""
        printed = self.run(*arguments)
        typer.echo(f"$ kubectl {' '.join(_quoted(each) for each in arguments)}\n{printed}\n")
        return printed

    def refusal(self, *arguments: str) -> str:
        """What it says on stderr where it has to fail; "" where it doesn't."""
        done = self._done(arguments)
        return done.stderr.strip() if done.returncode != 0 else ""

    def _done(self, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._command, *arguments], capture_output=True, text=True, check=False)  # noqa: S603


def _quoted(argument: str) -> str:
    return f"'{argument}'" if " " in argument else argument
