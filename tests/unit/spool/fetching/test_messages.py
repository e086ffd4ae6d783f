"""The lines between a fetcher and the process that starts it: what was sent is what is received, or a named error."""

from __future__ import annotations

import dataclasses
import json
import string
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.core.errors import ConnectorError, ServiceUnavailableError, SourceGoneError, SpoolVersionError
from connectors.spool.fetching.messages import (
    COMMANDS,
    MAX_COMMAND_BYTES,
    MAX_REPORT_BYTES,
    PLANS,
    REPORTS,
    Allow,
    Fault,
    FetchPlan,
    Health,
    Note,
    Ordered,
    Published,
    Ready,
    Start,
    decode,
    encode,
)

KINDS: Mapping[str, Any] = {**COMMANDS, **REPORTS, **PLANS}
NUMBERS = st.integers(0, 1 << 61)
TEXTS = st.text(max_size=40)
SECONDS = st.floats(0, 1e9)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=4)
SENTENCES = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=40)
"""An error drops what could forge a line of a log."""
ERRORS = st.builds(
    lambda kind, *texts: kind(*texts),
    st.sampled_from([ConnectorError, ServiceUnavailableError, SourceGoneError]),
    *(SENTENCES, SENTENCES, SENTENCES, SENTENCES),
)
PLAN = st.builds(
    FetchPlan,
    *(TEXTS, TEXTS, TEXTS, st.binary(max_size=32)),
    source=NUMBERS,
    settings=OBJECTS,
    publish_period=SECONDS,
    segment_bytes=NUMBERS,
    compression=TEXTS,
    access=st.none() | OBJECTS,
    share_of=NUMBERS,
    max_reader_age=SECONDS,
    ordered=st.booleans(),
    has_identity=st.booleans(),
)
COUNTERS = st.dictionaries(TEXTS, NUMBERS, max_size=4)
HEALTH = st.builds(
    Health,
    *(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.booleans(), st.none() | SECONDS, NUMBERS, NUMBERS),
    error=st.none() | ERRORS,
    counters=COUNTERS,
)
MESSAGES = st.one_of(
    PLAN,
    st.builds(Start, PLAN, NUMBERS, NUMBERS, st.none() | NUMBERS, OBJECTS),
    st.builds(Allow, NUMBERS),
    st.builds(Ordered, TEXTS, JSON),
    st.builds(Ready, TEXTS),
    st.builds(Published, NUMBERS, NUMBERS, NUMBERS),
    HEALTH,
    st.builds(Note, JSON),
    st.builds(Fault, st.booleans(), ERRORS),
)
ERROR = {"kind": "ConnectorError", "code": "A", "what": "b", "where": "c", "action": "d"}


def values_of(message: object) -> dict[str, Any]:
    """The fields of a message, with errors as JSON: two errors are never equal."""
    values = {each.name: getattr(message, each.name) for each in fields(message)}  # type: ignore[arg-type]
    return {name: value.to_json() if isinstance(value, ConnectorError) else value for name, value in values.items()}


@given(MESSAGES)
def test_what_is_encoded_is_decoded(message: Any) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    received = decode(line, KINDS)
    assert type(received) is type(message)
    assert values_of(received) == values_of(message)
    assert encode(received) == line


@given(MESSAGES, st.data())
def test_an_altered_line_is_another_message_or_a_named_error(message: Any, data: st.DataObject) -> None:
    line = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(line) - 1))
        match data.draw(st.sampled_from(["change", "remove", "insert", "cut"])):
            case "change":
                line[at] = data.draw(st.integers(0, 255))
            case "remove" if len(line) > 1:
                del line[at]
            case "insert":
                line.insert(at, data.draw(st.sampled_from(b'{}[]",:0 \\x')))
            case "cut" if at:
                del line[at:]
    try:
        decode(bytes(line), KINDS)
    except ConnectorError as error:
        assert error.code in {"FETCHER_MESSAGE_MALFORMED", "FETCHER_OTHER_VERSION"}  # noqa: PT017 - or no error


@given(MESSAGES, st.data())
def test_a_field_that_is_absent_unknown_or_of_another_type_is_a_named_error(message: Any, data: st.DataObject) -> None:
    value = json.loads(encode(message))
    ((kind, content),) = [(name, item) for name, item in value.items() if name != "v"]
    name = data.draw(st.sampled_from(sorted(content)))
    change = data.draw(st.sampled_from(["absent", "unknown", "type"]))
    if change == "absent":
        del content[name]
    elif change == "unknown":
        content["another"] = 1
    elif name == "value":
        return  # any JSON is right
    else:
        content[name] = [None]
    with pytest.raises(ConnectorError, match="FETCHER_MESSAGE_MALFORMED") as raised:
        decode(json.dumps(value).encode(), KINDS)
    assert kind in raised.value.what


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        (b"", COMMANDS),
        (b"hello\n", COMMANDS),
        (b"[1]\n", COMMANDS),
        (b"\xff\n", COMMANDS),
        (b"[" * 100_000, COMMANDS),
        (b'{"allow": {"allowance": 1}}\n', COMMANDS),
        (b'{"v": 1}\n', COMMANDS),
        (b'{"v": 1, "later": {}}\n', COMMANDS),
        (b'{"v": 1, "allow": {"allowance": 1}, "order": {"name": "a", "value": 1}}\n', COMMANDS),
        (b'{"v": 1, "allow": {"allowance": -1}}\n', COMMANDS),
        (b'{"v": 1, "allow": {"allowance": true}}\n', COMMANDS),
        (b'{"v": 1, "ready": {"fetcher": "a"}}\n', COMMANDS),
        (b'{"v": 1, "allow": {"allowance": 1}}\n', REPORTS),
    ],
)
def test_a_line_that_is_no_message_of_the_expected_kinds_is_a_named_error(
    line: bytes, kinds: Mapping[str, Any]
) -> None:
    with pytest.raises(ConnectorError, match="FETCHER_MESSAGE_MALFORMED"):
        decode(line, kinds)


@pytest.mark.parametrize("version", [0, 2, "1", None, True])
def test_a_message_of_another_version_is_refused_and_says_what_to_do(version: object) -> None:
    line = json.dumps({"v": version, "allow": {"more": 1}}).encode()
    with pytest.raises(SpoolVersionError, match=r"FETCHER_OTHER_VERSION.*the same version") as raised:
        decode(line, COMMANDS)
    assert not raised.value.transient, "another process would be of the same version"


def test_the_error_of_a_plan_shows_no_secret() -> None:
    plan = FetchPlan("a:b", "/spool", "spool", b"k" * 16, settings={"key": "s3cr3t"})
    value = json.loads(encode(plan))
    value["plan"]["settings"] = "s3cr3t"
    with pytest.raises(ConnectorError, match=r"plan.settings") as raised:
        decode(json.dumps(value).encode(), PLANS)
    assert "s3cr3t" not in str(raised.value)


def test_a_command_that_a_pipe_does_not_take_whole_is_refused() -> None:
    room = MAX_COMMAND_BYTES - len(encode(Ordered("name", "")))
    assert len(encode(Ordered("name", "x" * room))) == MAX_COMMAND_BYTES
    with pytest.raises(ConnectorError, match=r"FETCHER_MESSAGE_TOO_LONG.*order.*4097.*4096"):
        encode(Ordered("name", "x" * (room + 1)))


@given(st.text(string.printable + "\u00e9\u4f60\U0001f600", min_size=1), st.integers(1, 30_000))
def test_a_long_note_or_error_is_cut_and_is_still_one(text: str, times: int) -> None:
    long = text * times
    error = SourceGoneError("NUMBERS_GONE", long, "numbers", long)
    for message in (Note({"key": ["a", "b"], "failed": long}), Fault(terminal=True, error=error), Health(error=error)):
        line = encode(message)
        assert len(line) <= MAX_REPORT_BYTES
        received = decode(line, REPORTS)
        if isinstance(received, Note):
            assert received.value["key"] == ["a", "b"]
            kept = received.value["failed"]
            assert kept == long or long.startswith(kept.removesuffix(" [...]"))
        else:
            assert isinstance(received, Fault | Health)
            assert type(received.error) is SourceGoneError
            assert received.error.code == "NUMBERS_GONE"


def test_a_note_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ConnectorError, match=r"FETCHER_MESSAGE_TOO_LONG.*note"):
        encode(Note(list(range(MAX_REPORT_BYTES))))


def test_these_are_the_lines_of_version_1() -> None:
    """Another line needs another version: a process that runs may start one of a pack that was upgraded meanwhile."""
    plan = FetchPlan("a:b", "/spool", "s", b"\x01", settings={"x": 1})
    error = ConnectorError("A", "b", "c", "d")
    plan_json = {
        "target": "a:b",
        "root": "/spool",
        "spool": "s",
        "hash_key": "AQ==",
        "source": 0,
        "settings": {"x": 1},
        "publish_period": 0.1,
        "segment_bytes": 64 << 20,
        "segment_rows": 1 << 20,
        "max_held_bytes": 256 << 20,
        "max_held_rows": 2_000_000,
        "compression": "",
        "access": None,
        "share_of": 0,
        "max_spool_bytes": 0,
        "max_reader_age": 0.0,
        "ordered": False,
        "seek": {},
        "has_identity": False,
    }
    health = {
        "held_bytes": 1,
        "held_rows": 2,
        "fetched_bytes": 3,
        "fetched_rows": 4,
        "paused": True,
        "settled_at": 0.5,
        "streams": 5,
        "streams_open": 6,
        "error": ERROR,
        "counters": {"n": 7},
    }
    lines: list[tuple[Any, str, dict[str, Any]]] = [
        (plan, "plan", plan_json),
        (Start(plan, 1, 2, 3, {}), "start", {"plan": plan_json, "index": 1, "parent": 2, "allowance": 3, "orders": {}}),
        (Allow(1), "allow", {"allowance": 1}),
        (Ordered("a", [1]), "order", {"name": "a", "value": [1]}),
        (Ready("f"), "ready", {"fetcher": "f"}),
        (Published(1, 2, 3), "published", {"number": 1, "bytes": 2, "total_bytes": 3}),
        (Health(1, 2, 3, 4, True, 0.5, 5, 6, error, {"n": 7}), "health", health),
        (Note({"a": 1}), "note", {"value": {"a": 1}}),
        (Fault(terminal=False, error=error), "fault", {"terminal": False, "error": ERROR}),
    ]
    assert {kind for _, kind, _ in lines} == KINDS.keys()
    for message, kind, content in lines:
        assert encode(message) == json.dumps({"v": 1, kind: content}).encode() + b"\n"


def test_a_plan_names_the_modules_of_providers_so_that_a_fetcher_finds_them_beside_the_job() -> None:
    plan = FetchPlan(target="shop.source:Target", root="/s", spool="a", hash_key=b"")
    assert plan.modules == ["shop.source"]
    provided = {"credential_provider": "tokens:google?role=a", "client": {"credential_provider": "keys:Aws"}}
    plan = dataclasses.replace(plan, settings=provided, access={"credential_provider": "stores:keys"})
    assert plan.modules == ["shop.source", "tokens", "stores", "keys"]
