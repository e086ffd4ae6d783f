"""A list that is read lazily and written once is a list like any other, and its text is what JSON would be."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from connectors.spool.ledger.records import JsonText, decode, encode
from connectors.spool.ledger.state import LedgerState, SegmentEntry, SegmentLog, Start

ENTRIES = st.builds(
    SegmentEntry,
    fetcher=st.sampled_from(["aa", "bb", 'a"b', "},{", '"segments":[', "\\", "é"]),
    number=st.integers(0, 1 << 40),
    source=st.integers(0, 3),
    rows=st.integers(0, 1 << 20),
    digest=st.sampled_from(["0123456789abcdef", ""]),
    published=st.none() | st.tuples(st.integers(0, 1 << 52), st.integers(0, 1 << 52)),
    admitted_rows=st.integers(0, 1 << 20),
    bytes=st.integers(0, 1 << 40),
    struck=st.none() | st.just("eJxjYGAAAAACAAE="),
    base=st.integers(0, 1 << 50),
)


def plain(entries: list[SegmentEntry]) -> bytes:
    """What a snapshot says of entries."""
    return json.dumps([entry.to_json() for entry in entries], sort_keys=True, separators=(",", ":")).encode()[1:-1]


@given(st.lists(ENTRIES, max_size=8), st.lists(ENTRIES, max_size=4), st.integers(0, 9), st.data())
def test_it_does_what_a_list_does(
    first: list[SegmentEntry], more: list[SegmentEntry], dropped: int, data: st.DataObject
) -> None:
    log = SegmentLog(JsonText(plain(first)))
    wanted = list(first)
    for entry in more:
        log.append(entry)
        wanted.append(entry)
    if wanted:
        index = data.draw(st.integers(-len(wanted), len(wanted) - 1))
        assert log[index] == wanted[index]
        log[index] = wanted[index] = replace(wanted[index], digest="")
    log.drop(dropped)
    del wanted[:dropped]
    assert bytes(log.text().text) == plain(wanted)
    assert len(log) == len(wanted)
    assert list(log) == wanted
    assert log[1:3] == wanted[1:3]
    assert bytes(SegmentLog(JsonText(log.text().text)).text().text) == plain(wanted)


@given(st.lists(ENTRIES, max_size=5))
def test_a_snapshot_is_the_json_that_it_always_was_and_comes_back_as_it_went(entries: list[SegmentEntry]) -> None:
    state = LedgerState("s", segments=SegmentLog(entries), starts=[Start("n", 0, 9)], fetchers={"aa": 3})
    record = {"v": 1, "kind": "snapshot", "spool": "s", "epoch": 1, "nonce": "n", "number": 0, "base": 0}
    data = encode(record | {"state": state.snapshot()})
    value = json.loads(data.splitlines()[0])
    assert value["state"]["segments"] == json.loads(b"[" + plain(entries) + b"]")
    assert data.splitlines()[0] == json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    found = LedgerState.from_snapshot(decode(data, "here"))
    assert list(found.segments) == entries
    assert encode(record | {"state": found.snapshot()}) == data
    assert found.segments.fetchers() == {entry.fetcher for entry in entries}
