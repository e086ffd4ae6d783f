"""The command ``connectors doctor``: one line for each check of this machine and of a source, with its fix."""

from __future__ import annotations

import json as json_text
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from connectors.cli.doctor.machine import check_machine
from connectors.cli.errors import console, named_errors
from connectors.cli.options import OPTIONS_FILE, read_options
from connectors.core.diagnostics import Finding, Outcome, run_checks
from connectors.core.errors import OptionError
from connectors.core.formats import CONNECTORS, Connector, connector_of, not_installed, packages_missing
from connectors.core.options.declaration import secret_options

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
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines.")] = False,
) -> None:
    """Find what keeps a stream from running: Python, Java, Spark, network, authentication, resource, spool.

    Changes nothing and takes no messages. Like Spark's workers, it imports packages from the current folder first: run
    it only where you would start the query. Exit codes: 0 if nothing failed (there may be warnings), 1 if something
    failed, 2 if the command line is wrong.
    """
    screen = console()
    findings: list[Finding] = []
    with named_errors(json=json):
        connector = _connector(source)
        # The doctor says so where the packages of a connector are not installed.
        is_usable = connector is not None and not not_installed(connector.needs)
        secrets = secret_options(*connector.option_classes().values()) if connector and is_usable else {}
        options = read_options(secrets, source or "", options_file, option or [])
        if connector is None and options:
            what, action = "--options and --option need --format, which names their source", f"Give {_formats()}."
            raise OptionError("OPTION_MISSING", what, "--format", action)
        of_source = iter(()) if connector is None else check_source(connector, options, os.environ)
        for finding in chain(check_machine(os.environ), of_source):
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


def check_source(connector: Connector, options: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the packages of a connector, then what a stream with these options needs; change nothing."""

    def packages() -> Iterator[str]:
        if missing := not_installed(connector.needs):
            raise packages_missing(missing, connector.format, connector.package)
        yield f"those of the extra {connector.package} are installed"

    for finding in run_checks(connector.format, ("packages",), packages()):
        yield finding
        if finding.outcome is Outcome.OK:
            yield from connector.module("doctor").diagnose(options, environ)


def _connector(source: str | None) -> Connector | None:
    connector = connector_of(source or "")
    if source is not None and connector is None:
        raise OptionError("FORMAT_UNKNOWN", f"The doctor knows no format {source!r}", "--format", f"Give {_formats()}.")
    return connector


def _formats() -> str:
    return f"one of {', '.join(sorted(connector.format for connector in CONNECTORS))}"


def _print(screen: Console, finding: Finding, *, new_area: bool) -> None:
    if new_area:
        screen.print(Text(finding.area, style="bold"))
    line = Text("  ")
    line.append(f"{finding.outcome:<7}", style=_STYLES[finding.outcome])
    line.append(f"  {finding.check}: {finding.seen}")
    if finding.code:
        line.append(f" [{finding.code}]", style="dim")
    screen.print(line, soft_wrap=True)
    if finding.fix:
        screen.print(Text(f"           fix: {finding.fix}", style="cyan"), soft_wrap=True)


def _sum(counts: Counter[Outcome]) -> Text:
    failures, warnings = counts[Outcome.FAILURE], counts[Outcome.WARNING]
    text = f"{failures} failed, {warnings} warnings, {counts[Outcome.OK]} ok, {counts[Outcome.SKIPPED]} skipped"
    return Text(text, style="bold red" if failures else "bold green")
