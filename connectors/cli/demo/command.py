"""The command ``connectors demo``."""

from __future__ import annotations

import contextlib
import json as json_text
import logging
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from connectors.cli.demo.count import FAULTS, is_right
from connectors.cli.demo.plan import FACTS, DemoPlan, ServiceName, Target
from connectors.cli.errors import console, named_errors
from connectors.cli.options import OPTIONS_FILE, read_options
from connectors.core.errors import ConnectorError, OptionError
from connectors.core.formats import connector_named, not_installed, packages_missing
from connectors.core.options.declaration import secret_options

if TYPE_CHECKING:
    from connectors.cli.demo.run import Progress

_INTERRUPTED = 130
_LABELS = {
    "delivered": "rows read back",
    "lost": "lost",
    "doubled": "doubled",
    "disordered": "out of order",
    "foreign": "never published",
    "replays": "batches repeated",
    "replays_differing": "repeated with other rows",
    "rows_per_second": "rows per second",
}
_Texts = list[str] | None
_Service = Annotated[ServiceName, typer.Argument(help="kafka, kinesis or pubsub. Default: pubsub.", show_default=False)]
_Endpoint = Annotated[str | None, typer.Option(help="Pub/Sub: an emulator, HOST:PORT. Kinesis: a server, by its URL.")]
_Topic = Annotated[_Texts, typer.Option(help="Kafka: use this topic; a second one receives the copies. Not removed.")]
_Subscription = Annotated[
    str | None, typer.Option(help="Pub/Sub: use this subscription and its topic. Takes all its messages.")
]
_Spool = Annotated[
    str | None, typer.Option(metavar="URL", help="Pub/Sub: spool below this folder or s3://, gs://, ... URL.")
]
_Option = Annotated[
    _Texts,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE", help="One more option of the source; no secrets here. Repeatable."
    ),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what it would do, create, cost and need; do nothing.")]


class _Interrupted(KeyboardInterrupt):
    """Raised in the main thread on the first SIGINT, SIGTERM or SIGHUP."""


def demo(  # noqa: PLR0913 - each is an option of the command
    service: _Service = ServiceName.PUBSUB,
    *,
    messages: Annotated[int, typer.Option(min=100, help="How many messages to publish.")] = 50_000,
    kills: Annotated[int, typer.Option(min=0, max=50, help="How many processes to kill.")] = 3,
    seed: Annotated[int | None, typer.Option(min=0, help="Which processes to kill, and when. Default: random.")] = None,
    minutes: Annotated[float, typer.Option(min=0.5, max=600, help="Count after this time, whatever has arrived.")] = 10,
    bootstrap: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Kafka: brokers to use.")] = None,
    endpoint: _Endpoint = None,
    project: Annotated[str | None, typer.Option(help="Pub/Sub: use Google's service in this project.")] = None,
    region: Annotated[str | None, typer.Option(help="Kinesis: use AWS in this region.")] = None,
    topic: _Topic = None,
    stream: Annotated[str | None, typer.Option(help="Kinesis: use this stream. Not resharded, not removed.")] = None,
    subscription: _Subscription = None,
    spool: _Spool = None,
    options_file: Annotated[str | None, OPTIONS_FILE] = None,
    option: _Option = None,
    max_cost: Annotated[float, typer.Option(min=0, help="Refuse to start if it may cost more, in US dollars.")] = 1.0,
    dry_run: _DryRun = False,
    json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
    record: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write that JSON to a file.")] = None,
    plant_loss: Annotated[bool, typer.Option("--plant-loss", help="Drop one row before the count.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with checkpoints and sinks.")] = False,
) -> None:
    """Publish messages, stream them through Spark, kill processes, restart, and count every message independently.

    By default it runs against a server included in this package. With --bootstrap, --region, --project or --endpoint it
    runs against that service, with your usual credentials. Whatever it creates there has a name that begins with
    connectors-demo- and is removed at the end, even after Ctrl-C. Exit codes: 0 if all counts are right, 1 if one is
    wrong, 2 if the demo could not run, 130 if it was interrupted.
    """
    screen = console(stderr=json)
    where = {"bootstrap": bootstrap, "endpoint": endpoint, "project": project, "region": region, "topic": topic}
    where |= {"stream": stream, "subscription": subscription, "spool": spool}
    extra = f"{service},testing"
    with named_errors(json=json, extra=extra):
        if missing := not_installed(connector_named(service).needs):
            raise packages_missing(missing, "this command", extra)
        secret = secret_options(*connector_named(service).option_classes().values())
        options = read_options(secret, connector_named(service).format, options_file, option or [])
        target = _target(service, where, options)
        if record is not None:
            _check_writable(record)
        seed = secrets.randbelow(1_000_000) if seed is None else seed
        plan = DemoPlan(Path(), service, target, messages, kills, seed, minutes, plant_loss)
        with _undisturbed(screen, keep=keep) as (folder, ignore):
            plan = replace(plan, folder=folder)
            outline = _outline(screen, plan, max_cost, dry_run=dry_run)
            result = None if dry_run else _demonstrate(screen, plan, ignore)
    text = json_text.dumps(outline if result is None else result, separators=(",", ":"))
    if record is not None and result is not None:
        record.write_text(text + "\n", encoding="utf-8")
    if json:
        sys.stdout.write(text + "\n")
    raise typer.Exit(0 if result is None or is_right(result) else 1)


def _target(service: ServiceName, where: Mapping[str, Any], options: Mapping[str, str]) -> Target:
    for name, value in where.items():
        if value and name not in FACTS[service].options:
            others = " or ".join(sorted(other for other, facts in FACTS.items() if name in facts.options))
            raise OptionError("DEMO_OPTION", f"The option --{name} is for the demo of {others}", f"demo {service}")
    existing = (*(where["topic"] or ()), *filter(None, (where["stream"], where["subscription"])))
    address, account = where["bootstrap"] or where["endpoint"], where["project"] or where["region"]
    target = Target(address, account, existing, where["spool"], options)
    if target.is_ours and existing:
        what = "Topics, streams and subscriptions are for an existing service"
        raise OptionError("DEMO_OPTION", what, f"demo {service}")
    return target


def _check_writable(record: Path) -> None:
    try:
        record.open("a").close()
    except OSError as error:
        raise OptionError(
            "DEMO_OPTION", f"The record of the run cannot be written: {error.strerror}", str(record)
        ) from None


@contextlib.contextmanager
def _undisturbed(screen: Console, *, keep: bool) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Yield a folder, and a switch that has all signals ignored; before, the first to end raises `_Interrupted`.

    The warnings of clients, which report each retry, are kept from the terminal.
    """
    waits, folder = [True], None

    def interrupt(*_: object) -> None:
        if waits:
            waits.clear()
            raise _Interrupted

    log, nowhere = logging.getLogger("connectors"), logging.NullHandler()
    log.addHandler(nowhere)
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        folder = Path(tempfile.mkdtemp(prefix="connectors-demo-"))
        yield folder, waits.clear
    except OSError as error:
        where = str(error.filename or folder or "TMPDIR")
        raise ConnectorError("DEMO_FOLDER", error.strerror or str(error), where) from None
    finally:
        if folder is not None and keep:
            screen.print(Text(f"kept: {folder}"), soft_wrap=True)
        elif folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        log.removeHandler(nowhere)
        for number, handler in before.items():
            signal.signal(number, handler)


def _outline(screen: Console, plan: DemoPlan, max_cost: float, *, dry_run: bool) -> dict[str, Any]:
    """Say what the run does, before a dry run also whom it kills and what it needs; refuse one that costs too much."""
    from connectors.cli.demo.processes import planned_kills  # noqa: PLC0415 - needs the extras of the service
    from connectors.cli.demo.run import service_of  # noqa: PLC0415 - as above

    service, planned, is_ours = service_of(plan), planned_kills(plan.seed, plan.kills), plan.target.is_ours
    creates = service.creates if not is_ours else service.creates[-1:] if plan.target.spool else []
    cost = {"dollars": plan.dollars, "assumes": FACTS[plan.service].assumes}
    lines = [f"{plan.service} on {service.server}: --seed {plan.seed} --messages {plan.messages} --kills {plan.kills}"]
    lines += [f"creates, and removes at the end: {what}" for what in creates]
    if not is_ours or plan.target.spool:
        lines.append(f"costs at most {plan.dollars:.2f} USD: {cost['assumes']}")
    if dry_run:
        lines += [f"needs: {right}" for right in service.rights if not is_ours]
        lines += [f"kills a {one.victim} when {one.share:.0%} of the messages are read" for one in planned]
        lines.append(f"publishes {plan.messages:,} messages within {plan.minutes:g} minutes. Nothing was done.")
    for line in lines:
        screen.print(Text(line), soft_wrap=True)
    if plan.dollars > max_cost:
        what = f"The run may cost {plan.dollars:.2f} USD, but --max-cost allows {max_cost:.2f}"
        raise OptionError("DEMO_COST", what, "--max-cost")
    names = {"service": plan.service.value, "server": service.server, "seed": plan.seed, "messages": plan.messages}
    rights = [] if is_ours else service.rights
    kills = [asdict(kill) for kill in planned]
    return {**names, "minutes": plan.minutes, "creates": creates, "rights": rights, "cost": cost, "kills": kills}


def _demonstrate(screen: Console, plan: DemoPlan, ignore: Callable[[], None]) -> dict[str, Any]:
    from connectors.cli.demo.run import run_demo, service_of  # noqa: PLC0415 - needs the extras of the service

    service = service_of(plan)
    try:
        with screen.status("Spark starts") as status:
            result = run_demo(service, lambda now: status.update(_line(now, plan)), ignore)
    except _Interrupted:
        screen.print("Interrupted." if service.left_behind else "Interrupted; what was created is removed.")
        raise typer.Exit(_INTERRUPTED) from None
    finally:
        for what in service.left_behind:
            screen.print(Text(f"Left behind, please remove it: {what}", style="bold red"), soft_wrap=True)
    screen.print(_table(result))
    victims = ", ".join(f"{kill['victim']} after {kill['rows']:,} rows" for kill in result["kills"]) or "nothing"
    for note in (f"{result['published']:,} messages published. Killed: {victims}.", *result["notes"]):
        screen.print(Text(note), soft_wrap=True)
    return result


def _line(now: Progress, plan: DemoPlan) -> str:
    counts = f"{now.published:,} of {plan.messages:,} published, {now.rows:,} in the sink"
    return f"{now.stage}: {counts}" + f", {now.duplicates:,} duplicates" * (now.duplicates > 0)


def _table(result: Mapping[str, Any]) -> Table:
    table = Table("", *[query["query"] for query in result["queries"]])
    if result["delivered_again"] is not None:
        table.add_row("duplicates dropped", f"{result['delivered_again']:,}")
    for name, label in _LABELS.items():
        cells = []
        for query in result["queries"]:
            value = query[name]
            style = "" if name not in FAULTS else "red" if value else "green"
            cells.append(Text("-" if value is None else f"{value:,}", style=style, justify="right"))
        table.add_row(label, *cells)
    return table
