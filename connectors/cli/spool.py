"""The command line of spools: ``connectors spool inspect | verify | quarantine | repair | ...``.

Exit codes: 0 if all is well or done; 1 if damage was found, a repair is due, or the question was answered with no;
2 if the command could not be carried out, with a named error.
"""

from __future__ import annotations

import contextlib
import json as json_text
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from connectors.cli.errors import console, named_errors, needed_width, printable
from connectors.cli.options import OPTIONS_FILE, read_options
from connectors.core.errors import ConnectorError, SourceGoneError, SpoolError
from connectors.core.formats import connector_of

if TYPE_CHECKING:
    from connectors.spool.admin.repair import Adoption, Loss, Wiping
    from connectors.spool.admin.survey import Inspection, SpoolStats
    from connectors.spool.admin.verify import Verification

spool_commands = typer.Typer(no_args_is_help=True, help="Inspect and repair the spools of streams.")

SpoolLocation = Annotated[
    str, typer.Argument(metavar="LOCATION", help="The spoolLocation of a stream: a folder, or a URL like s3://.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

_REACH = {"endpoint", "allowinsecure", "credentialsfile", "credentialprovider"}
_COLOURS = {"damage": "red", "loss": "yellow", "note": "dim"}


@spool_commands.command("inspect")
def inspect_command(
    location: SpoolLocation,
    *,
    json: Json = False,
    seconds: Annotated[
        float | None, typer.Option("--rates", min=0.1, help="Show rates, from two readings this many seconds apart.")
    ] = None,
) -> None:
    """Show what a spool holds and its state. Changes nothing; a query may be running."""
    with _spool_at(location, json=json) as root:
        inspection: Inspection = _admin("survey").inspect(root)
        rates = {} if seconds is None else asdict(_admin("survey").rates(root, seconds))
    shown = asdict(inspection)
    if json:
        _print_json(shown | ({"rates": rates} if rates else {}))
        return
    _show_pairs("spool", _facts(inspection))
    _show_pairs("rows", _counts(inspection.stats))
    if inspection.stats.ready_rows:
        note = "not committed: the last finished batch is committed when Spark plans the next one; a sink may have it."
        console(soft_wrap=True).print(Text(note, style="dim"))
    if rates:
        _show_pairs("messages a second", [(name, f"{value:,.1f}") for name, value in rates.items()])
    for title, rows in (("fetchers", shown["fetchers"]), ("quarantined", shown["lost"])):
        if rows:
            _show_table(title, tuple(rows[0]), [list(row.values()) for row in rows])


@spool_commands.command("verify")
def verify_command(location: SpoolLocation, *, json: Json = False) -> None:
    """Check every byte of a spool. Changes nothing; a query may be running. Exits with 1 if there is damage."""
    with _spool_at(location, json=json) as root:
        result: Verification = _admin("verify").verify(root)
    if json:
        _print_json(asdict(result) | {"sound": result.sound})
    else:
        if result.findings:
            rows = [list(asdict(finding).values()) for finding in result.findings]
            colours = [_COLOURS[finding.severity] for finding in result.findings]
            _show_table("findings", ("severity", "file", "code", "what", "what to do"), rows, colours)
        verdict = "no damage" if result.sound else "DAMAGED"
        console().print(Text(f"{result.files:,} files, {result.bytes:,} bytes: {verdict}"))
    raise typer.Exit(0 if result.sound else 1)


@spool_commands.command("quarantine")
def quarantine_command(
    location: SpoolLocation,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Segments, as errors and verify name them.")],
    *,
    json: Json = False,
) -> None:
    """Quarantine damaged or missing segments, and record their rows as empty: the query continues without them.

    All other rows keep their positions. The files are kept in the spool's folder quarantine.
    """
    with _spool_at(location, json=json) as root:
        losses: list[Loss] = _admin("repair").quarantine_named(root, names)
    _print_losses(losses, json=json, title="quarantined")


@spool_commands.command("repair")
def repair_command(
    location: SpoolLocation,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Quarantine every damaged or missing segment. Other damage, which verify shows, needs a backup.

    With --dry-run, nothing changes, and the exit code is 1 if there is something to repair.
    """
    with _spool_at(location, json=json) as root:
        repair = _admin("repair")
        due: list[Loss] = repair.losses_of_repair(root)
        if dry_run:
            _print_losses(due, json=json, title="would be quarantined")
            raise typer.Exit(1 if due else 0)
        if due:
            _confirm(f"{_rows(due):,} rows in {len(due)} segments will be recorded as empty.", yes=yes)
            due = repair.repair(root)
    _print_losses(due, json=json, title="quarantined")


@spool_commands.command("adopt")
def adopt_command(location: SpoolLocation, *, yes: Yes = False, json: Json = False) -> None:
    """Let queries use a spool that was moved or copied here. It can then no longer be used at its old place."""
    with _spool_at(location, json=json) as root:
        repair = _admin("repair")
        unseen = repair.old_place(root)
        if unseen is not None:
            _confirm(
                f"The old place {unseen} cannot be seen from here. If the spool is still there, no query may ever use "
                "it again.",
                yes=yes,
            )
        done: Adoption = repair.adopt(root)
    if json:
        _print_json(asdict(done))
    elif done.old == done.new:
        console().print(Text(f"Nothing to do: spool {done.spool} belongs here."))
    else:
        fenced = "it is fenced there" if done.fenced else "there is no other one there"
        console().print(Text(f"Spool {done.spool} now belongs to {done.new}. It came from {done.old}: {fenced}."))


@spool_commands.command("wipe")
def wipe_command(location: SpoolLocation, *, yes: Yes = False, json: Json = False) -> None:
    """Delete a spool and everything in it. A query with its checkpoint then stops with SPOOL_OTHER."""
    with _spool_at(location, json=json) as root:
        _confirm(f"{_stake(root)} Delete the spool {root}?", yes=yes)
        done: Wiping = _admin("repair").wipe(root)
    if json:
        _print_json(asdict(done))
        return
    console().print(Text(f"{done.files:,} files deleted."))
    for name in done.left:
        why = "it cannot be removed" if name == root else "it is not part of a spool"
        console().print(Text(f"left, because {why}: {name}"))


@spool_commands.command("delete-subscriptions")
def delete_subscriptions_command(
    location: SpoolLocation,
    *,
    options_file: Annotated[str | None, OPTIONS_FILE] = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete the Pub/Sub subscriptions that filled a spool, after the last run of its query.

    Refused while a query or a fetcher uses the spool. The options endpoint, allowInsecure, credentialsFile and
    credentialProvider say how to reach the service, as for the query. The spool and its rows stay; wipe deletes them.
    """
    with _spool_at(location, json=json) as root, _admin("repair").unused(root) as identity:
        connector = connector_of(identity.connector)
        if connector is None or not connector.deletion:
            what = f"A spool of {identity.connector} has no subscriptions"
            raise SpoolError("SPOOL_NO_SUBSCRIPTIONS", what, root)
        options = read_options({}, identity.connector, options_file, ())
        reach = {key: value for key, value in options.items() if key.lower() in _REACH}
        _confirm(
            f"{', '.join(identity.sources)}: delete with all messages that were not delivered to the spool yet?",
            yes=yes,
        )
        for name in identity.sources:
            with contextlib.suppress(SourceGoneError):  # deleted before
                connector.load(connector.deletion)(name, reach)
    if json:
        _print_json({"deleted": list(identity.sources)})
    else:
        console().print(Text(f"deleted: {', '.join(identity.sources)}"))


def _stake(root: str) -> str:
    """Return what is lost with a spool, as far as it can be read."""
    try:
        counts: SpoolStats = _admin("survey").stats(root)
    except ConnectorError as error:
        store = import_module("connectors.spool.store").open_store
        if error.code == "SPOOL_IS_CACHE":
            raise
        if error.code == "SPOOL_NOT_FOUND" and not store(root, "wipe").exists("wiping"):
            raise
        return "What it holds cannot be read."
    ready = counts.ready_rows + counts.waiting_rows
    return f"It holds {ready:,} rows that no batch has committed; they were acked, so this may be their only copy."


@contextlib.contextmanager
def _spool_at(location: str, *, json: bool) -> Iterator[str]:
    """The folder or URL of a spool; errors are printed by their code, and the command ends with 2.

    Everything of `connectors.spool` is imported within: it needs an extra, and the help of the commands must not.
    """
    with named_errors(json=json, extra="spool"):
        try:
            yield import_module("connectors.spool.options").location_text(location)
        except OSError as error:
            what, where = error.strerror or str(error), str(error.filename or "the spool")
            raise SpoolError("SPOOL_UNREADABLE", what, where) from None


def _admin(module: str) -> ModuleType:
    return import_module(f"connectors.spool.admin.{module}")


def _confirm(question: str, *, yes: bool) -> None:
    if not yes:
        typer.confirm(printable(f"{question} Go on?"), abort=True, err=True)


def _rows(losses: Sequence[Loss]) -> int:
    return sum(loss.end - loss.first for loss in losses)


def _print_losses(losses: Sequence[Loss], *, json: bool, title: str) -> None:
    if json:
        _print_json({"segments": [asdict(loss) for loss in losses], "rows": _rows(losses)})
    elif losses:
        heads = ("segment", "first", "end", "committed", "error")
        _show_table(title, heads, [list(asdict(loss).values()) for loss in losses])
    else:
        console().print("Nothing to do: no segment is damaged or missing.")


def _facts(spool: Inspection) -> list[tuple[str, str]]:
    holder = "no query" if spool.holder is None else f"reader {spool.holder['pid']}, driver {spool.holder['jvm']}"
    moved = [] if spool.location == spool.path else [("belongs to", f"{spool.location}: adopt it to use it here")]
    layout = "none yet" if spool.layout is None else f"{spool.layout[0]:,} bytes, at most {spool.layout[1]}"
    return [
        ("id", spool.stats.spool),
        ("path", spool.path),
        *moved,
        ("format", spool.connector),
        ("sources", ", ".join(spool.stats.sources)),
        ("used by", holder),
        ("starts", f"{spool.epochs:,}"),
        ("partitions", layout),
        ("runs of ids", f"{len(spool.runs):,} with {spool.stats.ids:,} ids"),
    ]


def _counts(counts: SpoolStats) -> list[tuple[str, str]]:
    oldest = counts.oldest_unread
    return [
        *((f"fetcher {where.partition(' ')[0]}", where.partition(" ")[2]) for where in counts.executor_fetchers),
        ("delivered", f"{counts.delivered:,}"),
        *((f"dropped: {reason}", f"{count:,}") for reason, count in counts.dropped.items()),
        ("oldest position", f"{counts.oldest:,}"),
        ("committed position", f"{counts.committed:,}"),
        ("end position", f"{counts.rows:,}"),
        ("not committed", f"{counts.ready_rows:,} rows, {counts.ready_bytes:,} bytes"),
        ("waiting for admission", f"{counts.waiting_rows:,} rows, {counts.waiting_bytes:,} bytes"),
        (
            "oldest of these, published",
            "none" if oldest is None else datetime.fromtimestamp(oldest / 1e6, UTC).isoformat(),
        ),
    ]


def _show_pairs(title: str, rows: Sequence[tuple[str, str]]) -> None:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    _show(table, title, [[(Text(name), Text(value)) for name, value in rows]])


def _show_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[Any]], styles: Sequence[str] = ()) -> None:
    table = Table(title=title, title_justify="left")
    for head in heads:
        table.add_column(head)
    records = []
    for index, row in enumerate(rows):
        style = styles[index] if styles else ""
        cells = [Text(f"{value:,}" if isinstance(value, int) else str(value), style=style) for value in row]
        table.add_row(*cells)
        records.append([(Text(head), cell) for head, cell in zip(heads, cells, strict=True)])
    _show(table, title, records)


def _show(table: Table, title: str, records: Sequence[Sequence[tuple[Text, Text]]]) -> None:
    """Print a table, or on a narrow terminal a line for each of its cells: a path that is broken cannot be copied."""
    screen = console(soft_wrap=True)
    if needed_width(screen, table) <= screen.width:
        screen.print(table)
        return
    for record in records:
        screen.print(Text(title, style="italic"))
        for name, value in record:
            screen.print(Text.assemble("  ", name, ": ", value))


def _print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json_text.dumps(value, sort_keys=True) + "\n")
