"""`sharepod operator`: the operator as it runs in production, Kopf embedded and uvloop underneath."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # typer reads the annotation
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sharepod_operator.settings import Settings


def operator(
    config: Annotated[
        Path | None,
        typer.Option("--config", help="YAML file with settings; variables SHAREPOD_* win. [default: $SHAREPOD_CONFIG]"),
    ] = None,
) -> None:
    """Run the operator until SIGTERM or SIGINT. Exit code 1: it failed; 2: the settings are wrong."""
    import uvloop  # noqa: PLC0415  # imports here cost a second that other commands don't have to wait

    from sharepod_operator.kube.errors import AuthError  # noqa: PLC0415
    from sharepod_operator.settings import SettingsError, load  # noqa: PLC0415

    try:
        settings = load(path=config)
    except SettingsError as error:
        for line in error.errors:
            typer.echo(line, err=True)
        raise typer.Exit(2) from None
    try:
        failure = uvloop.run(_run(settings))
    except AuthError as error:
        typer.echo(f"sharepod operator: {error}", err=True)
        raise typer.Exit(1) from None
    if failure is not None:
        raise typer.Exit(1)  # the log has said why


async def _run(settings: Settings) -> BaseException | None:
    """The whole life of the process; what made it end, if that was no signal."""
    import kopf  # noqa: PLC0415

    import sharepod_operator.handlers  # noqa: F401, PLC0415  # registers them
    from sharepod_operator.runtime import Runtime  # noqa: PLC0415

    runtime = await Runtime.start(settings)
    try:
        await kopf.operator(
            registry=kopf.get_default_registry(),
            memo=kopf.Memo(runtime=runtime),
            clusterwide=True,
            standalone=True,
        )
    except Exception:
        if runtime.failure is None:
            raise
    return runtime.failure
