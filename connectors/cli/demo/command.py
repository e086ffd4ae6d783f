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
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from connectors.cli.demo.plan import DemoPlan, Service, ServiceName, Target
from connectors.cli.errors import console, named_errors
from connectors.cli.options import OPTIONS_FILE, read_options
from connectors.core.errors import ConnectorError, OptionError
from connectors.core.formats import connector_named, not_installed, packages_missing
from connectors.core.options.declaration import secret_options

if TYPE_CHECKING:
    from connectors.cli.demo.count import Tally
    from connectors.cli.demo.run import DemoResult, Progress

_INTERRUPTED = 130
_OPTIONS_OF = {
    "bootstrap": (ServiceName.KAFKA,),
    "endpoint": (ServiceName.PUBSUB, ServiceName.KINESIS),
    "project": (ServiceName.PUBSUB,),
    "region": (ServiceName.KINESIS,),
    "topic": (ServiceName.KAFKA,),
    "stream": (ServiceName.KINESIS,),
    "subscription": (ServiceName.PUBSUB,),
    "spool": (ServiceName.PUBSUB,),
}
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
_MUST_BE_ZERO = ("lost", "doubled", "disordered", "foreign", "replays_differing")


_Service = Annotated[
    ServiceName,
    typer.Argument(help="kafka, kinesis or pubsub. Default: pubsub.", show_default=False),
]
_Messages = Annotated[int, typer.Option(min=100, help="How many messages to publish.")]
_Kills = Annotated[int, typer.Option(min=0, max=50, help="How many processes to kill.")]
_Seed = Annotated[int | None, typer.Option(min=0, help="Chooses who is killed and when. Default: random.")]
_Minutes = Annotated[float, typer.Option(min=0.5, max=600, help="Count after this time, whatever has arrived.")]
_Bootstrap = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Kafka: brokers to use.")]
_Endpoint = Annotated[str | None, typer.Option(help="Pub/Sub: an emulator, HOST:PORT. Kinesis: a server, by its URL.")]
_Project = Annotated[str | None, typer.Option(help="Pub/Sub: use Google's service in this project.")]
_Region = Annotated[str | None, typer.Option(help="Kinesis: use AWS in this region.")]
_Topics = Annotated[
    list[str] | None, typer.Option(help="Kafka: use this topic; a second one takes the copies. Not removed.")
]
_Stream = Annotated[str | None, typer.Option(help="Kinesis: use this stream. Not resharded, not removed.")]
_Subscription = Annotated[
    str | None, typer.Option(help="Pub/Sub: use this subscription and its topic. Takes all its messages.")
]
_Spool = Annotated[
    str | None, typer.Option(metavar="URL", help="Pub/Sub: spool below this folder or s3://, gs://, ... URL.")
]
_OptionsFile = Annotated[str | None, OPTIONS_FILE]
_Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE", help="One more option of the source; no secrets here. Repeatable."
    ),
]
_MostCost = Annotated[float, typer.Option(min=0, help="Refuse to start if it may cost more US dollars.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would do, create, cost and need; do nothing.")]
_Json = Annotated[bool, typer.Option("--json", help="End with one line of JSON.")]
_Record = Annotated[Path | None, typer.Option(metavar="FILE", help="Write that JSON into a file, too.")]
_PlantLoss = Annotated[bool, typer.Option("--plant-loss", help="Drop one row before the count.")]
_Keep = Annotated[bool, typer.Option("--keep", help="Keep the folder with checkpoints and sinks.")]


class _Interrupted(KeyboardInterrupt):
    """Raised in the main thread on the first SIGINT or SIGTERM."""


def demo(  # noqa: PLR0913 - each is an option of the command
    service: _Service = ServiceName.PUBSUB,
    *,
    messages: _Messages = 50_000,
    kills: _Kills = 3,
    seed: _Seed = None,
    minutes: _Minutes = 10,
    bootstrap: _Bootstrap = None,
    endpoint: _Endpoint = None,
    project: _Project = None,
    region: _Region = None,
    topic: _Topics = None,
    stream: _Stream = None,
    subscription: _Subscription = None,
    spool: _Spool = None,
    options_file: _OptionsFile = None,
    option: _Options = None,
    max_cost: _MostCost = 1.0,
    dry_run: _DryRun = False,
    json: _Json = False,
    record: _Record = None,
    plant_loss: _PlantLoss = False,
    keep: _Keep = False,
) -> None:
    """Publish, stream through Spark, kill on the way, restart, and count every message by a reader of its own.

    Without an address it runs against a server that comes with this package. With --bootstrap, --region, --project or
    --endpoint it runs against that service, with your usual credentials. What it creates there has names that begin
    with connectors-demo- and is removed at the end, also after Ctrl-C. Ends with code 0 if all counts are right, with
    1 if one is not, with 2 if it could not be carried out, with 130 if it was interrupted.
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
        result = _demonstrate(screen, plan, max_cost=max_cost, keep=keep, dry_run=dry_run)
    text = json_text.dumps(result if isinstance(result, dict) else asdict(result), separators=(",", ":"))
    if record is not None and not dry_run:
        record.write_text(text + "\n", encoding="utf-8")
    if json:
        sys.stdout.write(text + "\n")
    raise typer.Exit(0 if isinstance(result, dict) or result.is_right else 1)


def _target(service: ServiceName, where: Mapping[str, Any], options: Mapping[str, str]) -> Target:
    """Return where the service is; refuses what is for another service, or for a service that is not named."""
    for name, value in where.items():
        if value and service not in _OPTIONS_OF[name]:
            what = f"--{name} is for the demo of {' or '.join(_OPTIONS_OF[name])}"
            raise OptionError("DEMO_OPTION", what, f"demo {service}")
    target = Target(
        endpoint=where["bootstrap"] or where["endpoint"],
        account=where["project"] or where["region"],
        topics=tuple(where["topic"] or filter(None, [where["stream"]])),
        subscription=where["subscription"],
        spool=where["spool"],
        options=options,
    )
    if target.is_ours and (target.topics or target.subscription):
        what = "Topics, streams and subscriptions are for a service that is there already"
        raise OptionError("DEMO_OPTION", what, f"demo {service}")
    return target


def _check_writable(record: Path) -> None:
    try:
        record.open("a").close()
    except OSError as error:
        raise OptionError("DEMO_OPTION", f"The record cannot be written: {error.strerror}", str(record)) from None


def _demonstrate(
    screen: Console, plan: DemoPlan, *, max_cost: float, keep: bool, dry_run: bool
) -> DemoResult | dict[str, Any]:
    from connectors.cli.demo.run import run_demo, service_of  # noqa: PLC0415 - needs the extras of the service

    logging.getLogger("connectors").addHandler(logging.NullHandler())  # clients report each retry
    with _folder(screen, keep=keep) as folder, _interruptible() as ignore:
        plan = replace(plan, folder=folder)
        service = service_of(plan)
        service.check()
        bound = service.bound()
        _announce(screen, plan, service)
        bound.check(max_cost)
        if dry_run:
            return _dry(screen, plan, service)
        try:
            with Live(console=screen, refresh_per_second=5, transient=True) as live:
                result = run_demo(plan, lambda now: live.update(_progress(now, plan.messages)), service, ignore)
        except _Interrupted:
            screen.print("Interrupted." if service.left_behind else "Interrupted; what was created is removed.")
            raise typer.Exit(_INTERRUPTED) from None
        finally:
            for what in service.left_behind:
                screen.print(Text(f"Left behind, please remove it: {what}", style="bold red"), soft_wrap=True)
        screen.print(_table(result))
        victims = ", ".join(f"{kill.victim} after {kill.rows:,} rows" for kill in result.kills) or "nothing"
        for note in (f"{result.published:,} messages published. Killed: {victims}.", *result.notes):
            screen.print(Text(note), soft_wrap=True)
        return result


@contextlib.contextmanager
def _folder(screen: Console, *, keep: bool) -> Iterator[Path]:
    folder: Path | None = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="connectors-demo-"))
        yield folder
    except OSError as error:
        where = str(error.filename or folder or "TMPDIR")
        raise ConnectorError("DEMO_FOLDER", error.strerror or str(error), where) from None
    finally:
        if folder is not None and keep:
            screen.print(Text(f"kept: {folder}"), soft_wrap=True)
        elif folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _interruptible() -> Iterator[Any]:
    """Raise `_Interrupted` on the first signal to end; ignore others, and all once the yielded switch is off."""
    waits = [True]

    def interrupt(*_: object) -> None:
        if waits:
            waits.clear()
            raise _Interrupted

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield waits.clear
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _announce(screen: Console, plan: DemoPlan, service: Service) -> None:
    again = f"--seed {plan.seed} --messages {plan.messages} --kills {plan.kills}"
    screen.print(Text(f"{plan.service} on {service.server}: {again}"), soft_wrap=True)
    if not plan.target.is_ours or plan.target.spool:
        for what in service.creates():
            screen.print(Text(f"creates, and removes at the end: {what}"), soft_wrap=True)
        bound = service.bound()
        screen.print(Text(f"costs at most {bound.dollars:.2f} USD: {bound.assumes}"), soft_wrap=True)


def _dry(screen: Console, plan: DemoPlan, service: Service) -> dict[str, Any]:
    from connectors.cli.demo.processes import kill_moments  # noqa: PLC0415 - as above

    moments = kill_moments(plan.seed, plan.kills)
    rights = [] if plan.target.is_ours else service.rights()
    for right in rights:
        screen.print(Text(f"needs: {right}"), soft_wrap=True)
    for moment in moments:
        screen.print(f"kills a {moment.victim} when {moment.share:.0%} of the messages are read")
    screen.print(f"publishes {plan.messages:,} messages within {plan.minutes:g} minutes. Nothing was done.")
    return {
        "service": plan.service.value,
        "server": service.server,
        "seed": plan.seed,
        "messages": plan.messages,
        "minutes": plan.minutes,
        "creates": [] if plan.target.is_ours else service.creates(),
        "rights": rights,
        "cost": asdict(service.bound()),
        "kills": [asdict(moment) for moment in moments],
    }


def _progress(progress: Progress, messages: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(Text(progress.stage, style="bold"))
    for label, value in {"published": progress.published, "in the sink": progress.rows}.items():
        table.add_row(label, ProgressBar(messages, value, width=30), f"{value:,}")
    if progress.duplicates:
        table.add_row("duplicates", "", f"{progress.duplicates:,}")
    return table


def _table(result: DemoResult) -> Table:
    table = Table()
    table.add_column("")
    for query in result.queries:
        table.add_column(query.query, justify="right")
    if result.delivered_again is not None:
        table.add_row("duplicates dropped", *[f"{result.delivered_again:,}" for _ in result.queries])
    for name, label in _LABELS.items():
        table.add_row(label, *[_cell(query, name) for query in result.queries])
    return table


def _cell(query: Tally, name: str) -> Text:
    value = getattr(query, name)
    style = "" if name not in _MUST_BE_ZERO else "red" if value else "green"
    return Text("-" if value is None else f"{value:,}", style=style)
