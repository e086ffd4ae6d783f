"""Keys of ids: equal for equal strings, and never for different ones, however alike they look (rule R8)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connectors.spool.segments.id_keys import IdKeys, OtherIds, keys_of

HASH_KEY = b"k" * 16
Key = tuple[str, int | bytes]

# What could be taken for a number: leading zeros, signs, spaces, digits of other scripts, and what is beyond 64 bits.
ALIKE = [
    *("0", "00", "123", "00123", "+123", "-123", " 123", "123 ", "1_23", "123.0", "1e2", "0x7b", "123\0", "\0123", ""),
    *(
        "\u0661\u0662\u0663",
        "\u0967\u0968\u0969",
        "\uff11\uff12\uff13",
        "\U0001d7cf\U0001d7d0\U0001d7d1",
        "\u2460\u2461\u2462",
        "12\uff13",
        "\u066123",
    ),
    *(str(number) for power in (1, 2) for number in range(2**64 * power - 2, 2**64 * power + 3)),
    *("9" * 19, "9" * 20, "9" * 21, "1" + "0" * 19, "0" * 19 + "1", "0" * 20, str(2**63), str(2**128 + 123)),
]
DIGITS = st.text(st.sampled_from("0123456789\u0663\u0969\uff13"), max_size=22)
NUMBERS = st.integers(0, 2**65).map(str)
IDS = st.one_of(st.sampled_from(ALIKE), DIGITS, NUMBERS, st.text(max_size=40))


def each(keys: IdKeys) -> list[set[Key]]:
    """The keys of each row."""
    found: list[set[Key]] = [
        {("number", int(number))} if numbered else set()
        for number, numbered in zip(keys.numbers, keys.numbered(), strict=True)
    ]
    for row, digest in zip(keys.hash_rows, keys.hashes, strict=True):
        found[int(row)].add(("hash", bytes(digest)))
    return found


def keys_for(ids: Sequence[str], other: OtherIds | None = None) -> list[set[Key]]:
    return each(keys_of(pa.array(ids, pa.string()), HASH_KEY, other))


def values(attribute: str, *texts: str | None) -> OtherIds:
    return OtherIds(attribute, pa.array(texts, pa.string()))


@given(st.lists(IDS, max_size=12))
@example(ALIKE)
def test_different_strings_never_share_a_key_and_equal_ones_always_do(ids: list[str]) -> None:
    ids = [*ids, *ids]
    rows = keys_for(ids)
    assert [len(row) for row in rows] == [1] * len(ids)
    assert len({tuple(row) for row in rows}) == len(set(ids))
    by_id: dict[str, set[Key]] = {}
    for text, row in zip(ids, rows, strict=True):
        assert by_id.setdefault(text, row) == row


@given(IDS, st.integers(0, 3), st.integers(0, 3))
def test_the_key_of_an_id_does_not_depend_on_its_neighbours_or_on_where_the_array_begins(
    text: str, before: int, after: int
) -> None:
    array = pa.array([*ALIKE[:before], text, *ALIKE[-after - 1 :]], pa.string())
    assert each(keys_of(array.slice(before, 1), HASH_KEY)) == keys_for([text])
    assert each(keys_of(array.cast(pa.large_string()).slice(before, 1), HASH_KEY)) == keys_for([text])


@given(IDS, IDS.filter(bool))
def test_a_value_of_an_attribute_shares_no_key_with_an_id_or_with_a_value_of_another(text: str, value: str) -> None:
    alone = keys_for([text])[0]
    both = keys_for([text], values("uid", value))[0]
    other = keys_for([text], values("order", value))[0]
    of_value = both - alone
    assert len(of_value) == 1
    assert not of_value & (other | keys_for([value])[0])


def test_canonical_numbers_are_kept_as_numbers_and_nothing_else_is() -> None:
    wanted = {text for text in ALIKE if text.isascii() and text.isdigit() and str(int(text)) == text}
    wanted = {text for text in wanted if int(text) < 2**64}
    numbered = {text for text in ALIKE if any(kind == "number" for kind, _ in keys_for([text])[0])}
    assert numbered == wanted
    assert all(keys_for([text]) == [{("number", int(text))}] for text in wanted)
    assert len(wanted) > 5


def test_a_row_with_a_value_keeps_its_number_and_one_without_has_only_its_own_key() -> None:
    rows = keys_for(["7", "8", "x", "y"], values("uid", "a", None, "b", None))
    assert [sorted(kind for kind, _ in row) for row in rows] == [["hash", "number"], ["number"], ["hash"], ["hash"]]
    assert rows[1] == keys_for(["8"])[0]
    assert rows[3] == keys_for(["y"])[0]
    assert rows[2] != keys_for(["x"])[0]


@pytest.mark.parametrize("other", [None, values("uid"), values("uid", "a", None)])
def test_keys_of_several_runs_of_rows_follow_each_other(other: OtherIds | None) -> None:
    ids = pa.array(["1", "x"] if other is None or len(other.values) else [], pa.string())
    one = keys_of(ids, HASH_KEY, other)
    both = IdKeys.concatenate([one, one])
    assert each(both) == each(one) * 2
    assert both.numbers.dtype == np.uint64


def test_the_key_of_the_hash_decides_the_hashes() -> None:
    ids = pa.array(["x"], pa.string())
    assert each(keys_of(ids, HASH_KEY)) != each(keys_of(ids, b"l" * 16))
