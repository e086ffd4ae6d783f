"""The command line: ``connectors demo``, ``doctor``, ``fetch``, ``watch``, ``protos`` and ``spool``."""

from __future__ import annotations

import json as json_text
import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from connectors import __version__
from connectors.cli.doctor import doctor
from connectors.cli.errors import console, named_errors
from connectors.cli.fetch import fetch
from connectors.cli.protos import protos_commands
from connectors.cli.spool import spool_commands
from connectors.cli.watch import watch
from connectors.core.errors import ConnectorError

if TYPE_CHECKING:
    from connectors.cli.demo.run import DemoResult, Progress

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Streaming sources and sinks for PySpark.")
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


@app.command()
def demo(
    *,
    messages: Annotated[int, typer.Option(min=100, help="How many messages to publish.")] = 50_000,
    endpoint: Annotated[str | None, typer.Option(help="An emulator, HOST:PORT; else a server of our own.")] = None,
    json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
    plant_loss: Annotated[bool, typer.Option("--plant-loss", help="Drop one row before the count.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with spool, checkpoint and sink.")] = False,
) -> None:
    """Publish, stream through Spark, redeliver, kill the query in the middle, restart it, and count by ids.

    Ends with code 0 if nothing was lost or doubled, with 1 if something was, with 2 if it could not be carried out.
    """
    screen = console(stderr=json)
    with named_errors(json=json, extra="pubsub,testing"):
        result = _demonstrate(screen, messages, endpoint, plant_loss=plant_loss, keep=keep)
    screen.print(_result(result))
    if json:
        sys.stdout.write(json_text.dumps(asdict(result), separators=(",", ":")) + "\n")
    raise typer.Exit(1 if result.lost or result.doubled else 0)


def _demonstrate(screen: Console, messages: int, endpoint: str | None, *, plant_loss: bool, keep: bool) -> DemoResult:
    from connectors.cli.demo.run import DemoPlan, run_demo  # noqa: PLC0415 - needs the extras pubsub and testing

    folder: Path | None = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="connectors-demo-"))
        with Live(console=screen, refresh_per_second=5, transient=True) as live:
            plan = DemoPlan(folder, messages, endpoint, plant_loss)
            return run_demo(plan, lambda progress: live.update(_progress(progress, messages)))
    except OSError as error:
        raise ConnectorError(
            "DEMO_FOLDER",
            error.strerror or str(error),
            str(error.filename or folder or "TMPDIR"),
        ) from None
    finally:
        if folder is not None and keep:
            screen.print(Text(f"kept: {folder}"), soft_wrap=True)
        elif folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _progress(progress: Progress, messages: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(Text(progress.stage, style="bold"))
    for label, value in {"published": progress.published, "in the sink": progress.rows}.items():
        table.add_row(label, ProgressBar(messages, value, width=30), f"{value:,}")
    table.add_row("duplicates", "", f"{progress.duplicates:,}")
    return table


def _result(result: DemoResult) -> Table:
    table = Table(title="pubsub, killed in the middle", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    styles = dict.fromkeys(("lost", "doubled"), "red" if result.lost or result.doubled else "green")
    for name, value in asdict(result).items():
        label = "duplicates dropped" if name == "duplicates" else name.replace("_", " ")
        table.add_row(label, Text(f"{value:,}", style=styles.get(name, "")))
    return table


def main() -> None:
    """Run the command line."""
    try:
        app()
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # who reads it, such as head, has ended: what is left would be a trace at the exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
