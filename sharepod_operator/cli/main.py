"""The command `sharepod`, also as `kubectl sharepod`. Exit codes: 0 done, 1 failed, 2 used wrongly."""

from __future__ import annotations

from typing import Annotated

import typer

from sharepod_operator import __version__
from sharepod_operator.cli import demo
from sharepod_operator.cli.operator import operator
from sharepod_operator.cli.simulate import simulate

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Share physical GPUs between pods on Kubernetes.",
)
app.add_typer(demo.app, name="demo")
app.command()(operator)
app.command()(simulate)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it with the flag alone
    if wanted:
        print(f"sharepod {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *, _version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False
) -> None:
    """Share physical GPUs between pods on Kubernetes."""


def main() -> None:
    app()


if __name__ == "__main__":
    main()
