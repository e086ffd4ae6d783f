"""The command line: ``connectors demo``, ``doctor``, ``fetch``, ``watch``, ``protos`` and ``spool``."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from connectors import __version__
from connectors.cli.demo.command import demo
from connectors.cli.doctor import doctor
from connectors.cli.fetch import fetch
from connectors.cli.protos import protos_commands
from connectors.cli.spool import spool_commands
from connectors.cli.watch import watch

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Streaming sources and sinks for PySpark.")
app.command()(demo)
app.command()(doctor)
app.command()(watch)
app.command()(fetch)
app.add_typer(protos_commands, name="protos")
app.add_typer(spool_commands, name="spool")


def _show_version(asked: bool) -> None:  # noqa: FBT001 - typer calls it
    if asked:
        sys.stdout.write(f"pyspark-stream-connectors {__version__}\n")
        raise typer.Exit


@app.callback()
def commands(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Streaming sources and sinks for PySpark, without a jar."""


def main() -> None:
    """Run the command line."""
    try:
        app()
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # who reads it, such as head, has ended: what is left would be a trace at the exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
