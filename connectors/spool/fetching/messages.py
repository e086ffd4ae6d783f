"""What a fetcher process and whoever starts it send each other: one line of JSON for each message.

A line is ``{"v": 1, "<kind>": {<fields>}}``. The source process and a program that fetches send commands by a pipe and
receive reports by another one; `connectors.executors` sends plans to executors. All of them may be of another version
of this pack: a pack may be upgraded while a query runs, and executors have their own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias, TypeVar

from connectors.core.errors import ConnectorError, SpoolVersionError, error_from_json
from connectors.spool.segments.shapes import ANY, HEX, NOTHING, misfit, optional
from connectors.spool.store.base import StoreAccess

VERSION: Final = 1
"""A message of another version is refused; a change of any message gives it a new number."""
MAX_COMMAND_BYTES: Final = 4096
"""A pipe that does not block takes so much as a whole or not at all (PIPE_BUF of Linux); `Start` is sent before."""
MAX_REPORT_BYTES: Final = 1 << 16
_CUT: Final = " [...]"
_SHORTEST_TEXT: Final = 32


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """What every fetcher of a spool receives at its start; secrets are never shown.

    Attributes:
        target: the function that builds the target, as ``module:name``. It is called with `settings` and a
            `FetchContext`; it may raise `ConnectorError`, and does not reach the service.
        source: index of the queue or stream in the spool's list of sources.
        publish_period: seconds: the shortest time between two publications and, unless one is still under way, the
            longest that a row waits for its own.
        segment_bytes, segment_rows: size at which a segment is published at once.
        max_held_bytes, max_held_rows: received and not durable, at which reading pauses.
        compression: of the rows in segments: ``lz4``, or an empty text for none.
        access: the JSON of a `StoreAccess`.
        share_of: how many fetchers share `max_spool_bytes` and read in the ledger what they may fetch, because the
            source process is elsewhere; 0 if the parent says what may be fetched.
        max_reader_age: seconds without a record in the ledger after which those fetchers pause.
        ordered: the source keeps an order, so one process at a time fetches it (rule R3).
        has_identity: whether the spool has an identity, to be checked before anything is made in its place.
    """

    target: str
    root: str
    spool: str
    hash_key: bytes = field(repr=False)
    source: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    publish_period: float = 0.1
    segment_bytes: int = 64 << 20
    segment_rows: int = 1 << 20
    max_held_bytes: int = 256 << 20
    max_held_rows: int = 2_000_000
    compression: str = ""
    access: Mapping[str, Any] | None = field(default=None, repr=False)
    share_of: int = 0
    max_spool_bytes: int = 0
    max_reader_age: float = 0.0
    ordered: bool = False
    has_identity: bool = False

    @property
    def store_access(self) -> StoreAccess | None:
        """How to reach the object store that the spool is on."""
        return None if self.access is None else StoreAccess.from_json(self.access)


# Commands: what a fetcher process receives.


@dataclass(frozen=True, slots=True)
class Start:
    """The first line that a fetcher receives.

    Attributes:
        index: the place of the fetcher among those of its source.
        parent: the process whose end ends the fetcher.
        allowance: as in `Allow`; None for no limit.
        orders: those that were given before, by name.
    """

    plan: FetchPlan
    index: int
    parent: int
    allowance: int | None = None
    orders: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Allow:
    """The bytes of rows that a process may fetch in all, from its start."""

    allowance: int


@dataclass(frozen=True, slots=True)
class Ordered:
    """An order for the target, which replaces the one of this name; None withdraws it."""

    name: str
    value: Any


# Reports: what a fetcher process sends.


@dataclass(frozen=True, slots=True)
class Ready:
    """A fetcher has its folder, and receives."""

    fetcher: str


@dataclass(frozen=True, slots=True)
class Published:
    """A segment is durable. A report may be lost, so the sum of all is in each."""

    number: int
    bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a fetcher; see `connectors.spool.fetching.group.FetcherStatus` for its fields."""

    held_bytes: int = 0
    held_rows: int = 0
    fetched_bytes: int = 0
    fetched_rows: int = 0
    paused: bool = False
    settled_at: float | None = None
    streams: int = 0
    streams_open: int = 0
    error: ConnectorError | None = None
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Note:
    """What a target sends to the source process, as JSON."""

    value: Any


@dataclass(frozen=True, slots=True)
class Fault:
    """The error that ends a fetcher; a terminal one ends all of them."""

    terminal: bool
    error: ConnectorError


Command: TypeAlias = Start | Allow | Ordered
Report: TypeAlias = Ready | Published | Health | Note | Fault
M = TypeVar("M", bound=Command | Report | FetchPlan)

COMMANDS: Final[Mapping[str, type[Command]]] = {"start": Start, "allow": Allow, "order": Ordered}
REPORTS: Final[Mapping[str, type[Report]]] = {
    "ready": Ready,
    "published": Published,
    "health": Health,
    "note": Note,
    "fault": Fault,
}
PLANS: Final[Mapping[str, type[FetchPlan]]] = {"plan": FetchPlan}
_KINDS: Final = {kind: name for name, kind in {**COMMANDS, **REPORTS, **PLANS}.items()}
_FIELDS: Final = {kind: tuple(each.name for each in fields(kind)) for kind in _KINDS}


def _seconds(value: object) -> bool:
    return type(value) in {int, float} and math.isfinite(value)  # type: ignore[arg-type]  # one of the two


_ONLY: Final = {"*": NOTHING}
"""No other fields."""
_ERROR: Final = {**dict.fromkeys(("kind", "code", "what", "where", "action"), str), **_ONLY}
_PLAN: Final = {
    **dict.fromkeys(("target", "root", "spool", "compression"), str),
    **dict.fromkeys(("source", "segment_bytes", "segment_rows", "max_held_bytes", "max_held_rows"), int),
    **dict.fromkeys(("share_of", "max_spool_bytes"), int),
    **dict.fromkeys(("publish_period", "max_reader_age"), _seconds),
    **dict.fromkeys(("ordered", "has_identity"), bool),
    "hash_key": HEX,
    "settings": {},
    "access": optional({}),
    **_ONLY,
}
_SHAPES: Final[Mapping[type, Mapping[str, Any]]] = {
    FetchPlan: _PLAN,
    Start: {"plan": _PLAN, "index": int, "parent": int, "allowance": optional(int), "orders": {}, **_ONLY},
    Allow: {"allowance": int, **_ONLY},
    Ordered: {"name": str, "value": ANY, **_ONLY},
    Ready: {"fetcher": str, **_ONLY},
    Published: {"number": int, "bytes": int, "total_bytes": int, **_ONLY},
    Health: {
        **dict.fromkeys(("held_bytes", "held_rows", "fetched_bytes", "fetched_rows", "streams", "streams_open"), int),
        "paused": bool,
        "settled_at": optional(_seconds),
        "error": optional(_ERROR),
        "counters": {"*": int},
        **_ONLY,
    },
    Note: {"value": ANY, **_ONLY},
    Fault: {"terminal": bool, "error": _ERROR, **_ONLY},
}


def encode(message: Command | Report | FetchPlan) -> bytes:
    """Return the line of a message, with its end.

    What a target or an error says is cut if it is too long. `ConnectorError`: a message is too long all the same.
    """
    limit = {Allow: MAX_COMMAND_BYTES, Ordered: MAX_COMMAND_BYTES, Start: None, FetchPlan: None}.get(
        type(message), MAX_REPORT_BYTES
    )
    line = _line(message)
    if limit is None or len(line) <= limit:
        return line
    length = limit // 2
    while isinstance(message, Note | Health | Fault) and len(line) > limit and length >= _SHORTEST_TEXT:
        line, length = _line(message, length), length // 2
    if len(line) > limit:
        raise ConnectorError(
            "FETCHER_MESSAGE_TOO_LONG",
            f"A message of a fetcher or to it ({_KINDS[type(message)]}) has {len(line)} bytes, and may have {limit}",
            "fetchers",
            "Report it with the name of the format: what a connector sends there has to be shorter.",
        )
    return line


def _line(message: Command | Report | FetchPlan, longest: int | None = None) -> bytes:
    content = _content(message)
    value = {_KINDS[type(message)]: content if longest is None else _shortened(content, longest)}
    return json.dumps({"v": VERSION, **value}, default=_plain).encode() + b"\n"


def _content(message: Command | Report | FetchPlan) -> dict[str, Any]:
    content = {name: getattr(message, name) for name in _FIELDS[type(message)]}
    return {**content, "hash_key": message.hash_key.hex()} if isinstance(message, FetchPlan) else content


def _plain(value: object) -> Any:
    """Return what JSON has for a value that it does not have."""
    match value:
        case ConnectorError():
            return value.to_json()
        case FetchPlan():
            return _content(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _shortened(value: Any, longest: int) -> Any:
    """Return a JSON value with no text longer than so many characters."""
    match value:
        case str() if len(value) > longest:
            return value[: longest - len(_CUT)] + _CUT
        case ConnectorError():
            return _shortened(value.to_json(), longest)
        case Mapping():
            return {name: _shortened(item, longest) for name, item in value.items()}
        case list() | tuple():
            return [_shortened(item, longest) for item in value]
    return value


def decode(line: bytes, kinds: Mapping[str, type[M]]) -> M:
    """Return the message of a line, which is of one of some kinds.

    Raises:
        SpoolVersionError: another version of this pack has sent it.
        ConnectorError: it is no such message.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise malformed("it is no JSON") from None
    if not isinstance(value, dict) or "v" not in value:
        raise malformed("it has no version")
    version = value.pop("v")
    if type(version) is not int or version != VERSION:
        raise SpoolVersionError(
            "FETCHER_OTHER_VERSION",
            f"A fetcher and the process that started it are of versions with other messages: {version!r:.20} and "
            f"{VERSION}",
            "fetchers",
            "Give driver, executors and programs that fetch the same version of pyspark-stream-connectors, and start "
            "the query and its fetchers again: nothing is lost.",
        )
    if len(value) != 1 or not kinds.keys() >= value.keys():
        raise malformed("its kind is not known")
    ((name, content),) = value.items()
    kind = kinds[name]
    if part := misfit(content, _SHAPES[kind], name):
        # Without the value: plans have secrets.
        raise malformed(part.partition(" is ")[0] + " has another shape")
    return _built(kind, content)


def _built(kind: type[M], content: Mapping[str, Any]) -> M:
    return kind(**{name: _READERS[name](item) if name in _READERS else item for name, item in content.items()})


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "hash_key": bytes.fromhex,
    "plan": lambda value: _built(FetchPlan, value),
    "error": lambda value: None if value is None else error_from_json(value),
}
"""What makes a field, whose name means the same in each message, of its JSON value."""


def malformed(what: str) -> ConnectorError:
    """Return the error of a line that is no message."""
    return ConnectorError(
        "FETCHER_MESSAGE_MALFORMED",
        f"A line between a fetcher and the process that started it is no message: {what}",
        "fetchers",
        "Start the query and its fetchers again; if it happens again, report it with the driver's log.",
    )
