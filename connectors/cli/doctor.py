"""The command ``connectors doctor``: one line for each check, with its fix."""

from __future__ import annotations

import json as json_text
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from connectors.cli.errors import console, named_errors
from connectors.cli.options import OPTIONS_FILE, read_options
from connectors.core.diagnostics import Finding, Outcome
from connectors.core.errors import OptionError
from connectors.core.extras import not_installed
from connectors.core.formats import connector_of
from connectors.core.options.declaration import Option, secret_options
from connectors.doctor import diagnose

_STYLES = {Outcome.OK: "green", Outcome.WARNING: "yellow", Outcome.FAILURE: "bold red", Outcome.SKIPPED: "dim"}


def doctor(
    *,
    source: Annotated[
        str | None, typer.Option("--format", help="Also check this source: pubsub, kinesis, kafka_py.")
    ] = None,
    options_file: Annotated[str | None, OPTIONS_FILE] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="One more option; no secrets here. Repeatable."),
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="The query's checkpoint, to hold against the source.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines.")] = False,
) -> None:
    """Find what keeps a stream from running: Python, Java, Spark, network, authentication, resource, spool.

    Changes nothing and takes no message. As Spark's workers do, it imports packages from the present folder first:
    start it only where you would start the query. Ends with 0 if nothing failed (there may be warnings), with 1 if
    something did, with 2 if the command line is wrong.
    """
    screen = console()
    findings: list[Finding] = []
    with named_errors(json=json):
        options = read_options(_secrets(source), source or "", options_file, option or [])
        if source is None and (options or checkpoint is not None):
            raise OptionError(
                "OPTION_MISSING",
                "--options, --option and --checkpoint are about a source, and none is named",
                "--format",
                "Give --format pubsub, kinesis or kafka_py.",
            )
        for finding in diagnose(source, options, os.environ, checkpoint):
            findings.append(finding)
            if not json:
                _print(screen, finding, new_area=len(findings) == 1 or findings[-2].area != finding.area)
    counts = Counter(finding.outcome for finding in findings)
    if json:
        result = {
            "failures": counts[Outcome.FAILURE],
            "warnings": counts[Outcome.WARNING],
            "findings": [finding.to_json() for finding in findings],
        }
        sys.stdout.write(json_text.dumps(result, indent=2) + "\n")
    else:
        screen.print(_sum(counts))
    raise typer.Exit(1 if counts[Outcome.FAILURE] else 0)


def _secrets(source: str | None) -> dict[str, Option]:
    """Return the secret options of a format; none where its packages are not installed, which the doctor will say."""
    connector = connector_of(source or "")
    if connector is None or not_installed(connector.needs):
        return {}
    return secret_options(*connector.option_classes().values())


def _print(screen: Console, finding: Finding, *, new_area: bool) -> None:
    if new_area:
        screen.print(Text(finding.area, style="bold"))
    line = Text("  ")
    line.append(f"{finding.outcome:<7}", style=_STYLES[finding.outcome])
    line.append(f"  {finding.check}: {finding.found}")
    if finding.code:
        line.append(f" [{finding.code}]", style="dim")
    screen.print(line, soft_wrap=True)
    if finding.fix:
        screen.print(Text(f"           fix: {finding.fix}", style="cyan"), soft_wrap=True)


def _sum(counts: Counter[Outcome]) -> Text:
    failures, warnings = counts[Outcome.FAILURE], counts[Outcome.WARNING]
    text = f"{failures} failed, {warnings} warnings, {counts[Outcome.OK]} ok, {counts[Outcome.SKIPPED]} skipped"
    return Text(text, style="bold red" if failures else "bold green")
