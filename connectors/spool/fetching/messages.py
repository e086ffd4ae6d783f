"""What a fetcher process and the process that started it send each other: one line of JSON per message.

A line is ``{"v": 1, "<kind>": {<fields>}}``. The source process and a program that fetches send commands by a pipe and
receive reports by another one; `connectors.executors` sends plans to executors. All of them may be of another version
of this pack: a pack may be upgraded while a query runs, and executors have their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, TypeAlias, TypedDict, TypeVar

import msgspec

from connectors.core.errors import ConnectorError, SpoolVersionError, error_from_json
from connectors.spool.store.base import StoreAccess

VERSION: Final = 1
"""A message of another version is refused; a change of any message gives it a new number."""
MAX_COMMAND_BYTES: Final = 4096
"""A pipe that does not block takes this much whole or not at all (PIPE_BUF of Linux); `Start` is sent before."""
MAX_REPORT_BYTES: Final = 1 << 16
_CUT: Final = " [...]"
_SHORTEST_TEXT: Final = 32
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _ErrorJson(TypedDict):
    kind: str
    code: str
    what: str
    where: str
    action: str


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
        max_held_bytes, max_held_rows: received and not durable; at these limits reading pauses.
        compression: of the rows in segments: ``lz4``, or an empty text for none.
        access: the JSON of a `StoreAccess`.
        share_of: how many fetchers share `max_spool_bytes` and read in the ledger what they may fetch, because the
            source process is elsewhere; 0 if the parent says what may be fetched.
        max_reader_age: seconds without a record in the ledger after which those fetchers pause.
        ordered: the source keeps an order, so one process at a time fetches it (rule R3).
        seek: where the query moves the source before anything is fetched; empty when it stays.
        has_identity: whether the spool has an identity, to be checked before anything is made in its place.
    """

    target: str
    root: str
    spool: str
    hash_key: bytes = field(repr=False)
    source: _Count = 0
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    publish_period: float = 0.1
    segment_bytes: _Count = 64 << 20
    segment_rows: _Count = 1 << 20
    max_held_bytes: _Count = 256 << 20
    max_held_rows: _Count = 2_000_000
    compression: str = ""
    access: Mapping[str, Any] | None = field(default=None, repr=False)
    share_of: _Count = 0
    max_spool_bytes: _Count = 0
    max_reader_age: float = 0.0
    ordered: bool = False
    seek: Mapping[str, Any] = field(default_factory=dict)
    has_identity: bool = False

    @property
    def store_access(self) -> StoreAccess | None:
        return None if self.access is None else StoreAccess.from_json(self.access)

    @property
    def modules(self) -> list[str]:
        """The modules that may be a user's: that of the target, and those of credential providers."""
        nested = [value for value in self.settings.values() if isinstance(value, Mapping)]
        providers = [one.get("credential_provider") for one in (self.settings, self.access or {}, *nested)]
        return [path.partition(":")[0] for path in (self.target, *providers) if path]


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
    index: _Count
    parent: _Count
    allowance: _Count | None = None
    orders: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Allow:
    """The bytes of rows that a process may fetch in all, from its start."""

    allowance: _Count


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

    number: _Count
    bytes: _Count
    total_bytes: _Count


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a fetcher, with the fields of `connectors.spool.fetching.group.FetcherStatus`."""

    held_bytes: _Count = 0
    held_rows: _Count = 0
    fetched_bytes: _Count = 0
    fetched_rows: _Count = 0
    paused: bool = False
    settled_at: float | None = None
    streams: _Count = 0
    streams_open: _Count = 0
    error: ConnectorError | None = None
    counters: Mapping[str, _Count] = field(default_factory=dict)


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
T = TypeVar("T")

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
            f"A message from or to a fetcher ({_KINDS[type(message)]}) has {len(line)} bytes. The limit is {limit}",
            "fetchers",
        )
    return line


def _line(message: Command | Report | FetchPlan, longest: int | None = None) -> bytes:
    content = to_json(message)
    value = {_KINDS[type(message)]: content if longest is None else _shortened(content, longest)}
    return json.dumps({"v": VERSION, **value}).encode() + b"\n"


def _shortened(value: Any, longest: int) -> Any:
    """Return a JSON value with no text longer than `longest` characters."""
    match value:
        case str() if len(value) > longest:
            return value[: longest - len(_CUT)] + _CUT
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
        value = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise malformed("it is not JSON") from None
    if not isinstance(value, dict) or "v" not in value:
        raise malformed("it has no version")
    version = value.pop("v")
    if type(version) is not int or version != VERSION:
        raise SpoolVersionError(
            "FETCHER_OTHER_VERSION",
            f"A fetcher and the process that started it use different versions of messages: {version!r:.20} and "
            f"{VERSION}",
            "fetchers",
        )
    if len(value) != 1 or not kinds.keys() >= value.keys():
        raise malformed("its kind is not known")
    ((name, content),) = value.items()
    return from_json(content, kinds[name], name)


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is not a number of JSON")


def to_json(message: Any) -> Any:
    return msgspec.to_builtins(message, enc_hook=lambda value: value.to_json())


def from_json(content: Any, kind: type[T], name: str) -> T:
    """Return the dataclass that `to_json` wrote. `ConnectorError`: it isn't one, or has other fields."""
    try:
        made = msgspec.convert(content, kind, dec_hook=_decoded)
    except msgspec.ValidationError as problem:  # without the value: plans have secrets
        path = str(problem).partition(" - at `$")[2].rstrip("`")
        raise malformed(f"{name}{path} has another shape") from None
    if content.keys() != {declared.name for declared in fields(kind)}:  # type: ignore[arg-type]  # a dataclass
        raise malformed(f"{name} has other fields")
    return made


def _decoded(_kind: type, value: Any) -> ConnectorError:
    return error_from_json(msgspec.convert(value, _ErrorJson))


def malformed(what: str) -> ConnectorError:
    return ConnectorError(
        "FETCHER_MESSAGE_MALFORMED",
        f"A line between a fetcher and the process that started it is not a valid message: {what}",
        "fetchers",
    )
