"""Kinds of options: which texts are values, and what a secret never does."""

from __future__ import annotations

import contextlib
import os
import pickle
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.core.errors import OptionError
from connectors.core.options.kinds import (
    BOOLEAN,
    BYTES,
    DURATION,
    FLOAT,
    INTEGER,
    PATH,
    STRING,
    Kind,
    choice,
    duration_or,
)
from tests.support.shop_options import Mode, parse, refused

# -- values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1024", 1024),
        ("1b", 1),
        ("64kb", 64 << 10),
        ("64K", 64 << 10),
        ("64MB", 64 << 20),
        ("64 mb", 64 << 20),
        ("1g", 1 << 30),
        ("2tb", 2 << 40),
        ("1p", 1 << 50),
    ],
)
def test_sizes_are_read_as_spark_reads_them(text: str, value: int) -> None:
    assert BYTES.parse(text) == value


@pytest.mark.parametrize("text", ["", "-1", "1.5g", "g", "1gib", "1 2", "9999999999g", "٣"])
def test_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|64 bits"):
        BYTES.parse(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("10s", 10),
        ("10 seconds", 10),
        ("1.5s", 1.5),
        ("5m", 300),
        ("5min", 300),
        ("5 minutes", 300),
        ("12h", 43_200),
        ("7D", 604_800),
        ("31d", 2_678_400),
        ("0", 0),
    ],
)
def test_durations_are_read_with_their_unit(text: str, seconds: float) -> None:
    assert DURATION.parse(text) == seconds


def test_plain_number_is_no_duration() -> None:
    with pytest.raises(ValueError, match="no unit"):
        DURATION.parse("10")


@pytest.mark.parametrize("text", ["", "s", "-1s", "1e3s", "1y", "10s5", "1..5s"])
def test_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        DURATION.parse(text)


@pytest.mark.parametrize("text", ["", "1.0", "1_000", "0x1", "ten", "99999999999999999999", "9223372036854775808"])
def test_text_that_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"whole number|64 bits"):
        INTEGER.parse(text)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("TRUE", True), ("false", False)])
def test_booleans_are_true_or_false(text: str, value: bool) -> None:
    assert BOOLEAN.parse(text) is value


@pytest.mark.parametrize("text", ["", "1", "yes", "on", "tru"])
def test_text_that_is_no_boolean_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        BOOLEAN.parse(text)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "x", ""])
def test_text_that_is_no_finite_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        FLOAT.parse(text)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/a/b", "/a/b"),
        ("/a b/ü", "/a b/ü"),
        ("file:/a/b", "/a/b"),
        ("file:///a%20b", "/a b"),
        ("FILE://localhost/a", "/a"),
        ("file:///a%23b%3Fc", "/a#b?c"),
        ("/a#b?c\td", "/a#b?c\td"),
    ],
)
def test_paths_are_absolute_or_file_urls(text: str, path: str) -> None:
    assert PATH.parse(text) == Path(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a/b", "relative"),
        ("./a", "relative"),
        ("~/a", "relative"),
        ("", "relative"),
        ("file:a", "relative"),
        ("file://host/a", "localhost"),
        ("s3://bucket/a", "s3 locations cannot be used here"),
        ("gs://bucket/a", "gs locations"),
        ("abfs://container@account/a", "abfs locations"),
        ("hdfs://name/a", "hdfs locations"),
        ("dbfs:/a", "dbfs locations"),
        ("/a\0b", "zero byte"),
        ("file:///a#b", "no [?], #"),
        ("file:///a?b", "no [?], #"),
        ("file:///a?", "no [?], #"),
        ("file:///a\tb", "control characters"),
        ("file:///a\nb", "control characters"),
    ],
)
def test_other_locations_are_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        PATH.parse(text)


@given(
    st.sampled_from([STRING, INTEGER, FLOAT, BOOLEAN, BYTES, DURATION, PATH, duration_or("auto"), choice(Mode)]),
    st.text(),
)
def test_parsing_any_text_gives_a_value_or_a_value_error(kind: Kind[object], text: str) -> None:
    with contextlib.suppress(ValueError):
        kind.parse(text)


@pytest.mark.parametrize(
    ("raw", "parts"),
    [
        ({"pages": "0"}, ("pages", "'0'", "a whole number, from 1 to 10")),
        ({"pagecount": "11"}, ("pages", "'11'", "from 1 to 10")),
        ({"pages": "x"}, ("pages", "'x'", "not a whole number")),
        ({"pagebytes": "1023"}, ("pageBytes", "'1023'", "at least 1kb")),
        ({"wait": "61m"}, ("wait", "'61m'", "at most 1h")),
        ({"keep": "9m"}, ("keep", "'9m'", "auto, or a duration", "from 10m to 31d")),
        ({"ratio": "1.01"}, ("ratio", "'1.01'", "from 0 to 1")),
        ({"mode": "slow"}, ("mode", "'slow'", "fast or safe")),
        ({"shopid": "  "}, ("shopId", "''", "empty")),
        ({"folder": "data"}, ("folder", "'data'", "relative")),
    ],
)
def test_bad_value_is_refused_with_option_value_and_what_is_legal(raw: dict[str, str], parts: tuple[str, ...]) -> None:
    error = refused(raw)
    assert error.code == "OPTION_ILLEGAL"
    for part in parts:
        assert part in str(error)


def test_word_of_a_duration_is_none_and_choices_match_in_any_case() -> None:
    assert parse({"keep": "AUTO"}).keep is None
    assert parse({"mode": "FAST"}).mode is Mode.FAST


def test_long_value_is_cut_in_the_error() -> None:
    assert len(str(refused({"pages": "9" * 10_000}))) < 400


# -- secrets ----------------------------------------------------------------------------------------------------

CANARY = "canary-9f27c1"


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "token.txt"
    path.write_text(f"{CANARY}\n")
    return path


@pytest.fixture(params=["value", "environment", "file", "file URL", "alias"])
def secretive(request: pytest.FixtureRequest, secret_file: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Raw options and environment that hold the secret, in each of the ways there are."""
    return {
        "value": ({"token": CANARY}, {}),
        "environment": ({"token": "env:SHOP_TOKEN"}, {"SHOP_TOKEN": CANARY}),
        "file": ({"token": f"file:{secret_file}"}, {}),
        "file URL": ({"token": f"file://{secret_file}"}, {}),
        "alias": ({"apitoken": CANARY}, {}),
    }[request.param]


def test_secret_is_there_and_never_shows(secretive: tuple[dict[str, str], dict[str, str]]) -> None:
    options = parse(*secretive)
    assert options.token is not None
    assert options.token.reveal() == CANARY
    copy = pickle.loads(pickle.dumps(options))
    assert copy == options
    shown = [
        repr(options),
        str(options),
        f"{options}",
        f"{options.token}",
        repr([options.token]),
        repr(copy),
        str(copy),
    ]
    assert "***" in repr(options)
    assert not [text for text in shown if CANARY in text]


def test_secret_never_shows_in_an_error(secretive: tuple[dict[str, str], dict[str, str]]) -> None:
    raw, environ = secretive
    for wrong in ({"pages": "x"}, {"nothing": "x"}, {"token": CANARY, "apitoken": "other"}, {"keyfile": CANARY}):
        with pytest.raises(OptionError) as caught:
            parse(raw | wrong, environ)
        whole = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(caught.value.to_json())
        assert CANARY not in whole


@pytest.mark.parametrize(
    ("reference", "names"),
    [
        ("env:NOT_THERE", ("NOT_THERE", "not set")),
        ("env:", ("not set",)),
        ("env:EMPTY", ("EMPTY", "not set")),
        ("file:/nowhere/token", ("/nowhere/token", "No such file")),
        ("file:token", ("token", "relative")),
        ("file:/dev/zero", ("/dev/zero", "not a regular file")),
    ],
)
def test_secret_that_cannot_be_read_names_its_source(reference: str, names: tuple[str, ...]) -> None:
    error = refused({"token": reference}, {"EMPTY": ""})
    assert error.code == "OPTION_SECRET_UNREADABLE"
    for name in ("token", *names):
        assert name in str(error)


def test_secret_file_that_is_no_text_or_empty_is_refused_without_its_contents(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"\xff" + CANARY.encode())
    error = refused({"token": f"file:{path}"})
    assert "UTF-8" in str(error)
    assert CANARY not in "".join(traceback.format_exception(error))
    path.write_text("\n")
    assert "is empty" in str(refused({"token": f"file:{path}"}))


def test_empty_secret_is_refused() -> None:
    assert refused({"token": " "}).code == "OPTION_ILLEGAL"


def sources_of(secret: str, path: Path) -> list[tuple[str, dict[str, str]]]:
    """Each way to give a secret: the text of the option, and the environment."""
    path.write_bytes(secret.encode())
    return [(secret, {}), ("env:SHOP_TOKEN", {"SHOP_TOKEN": secret}), (f"file:{path}", {})]


@pytest.mark.parametrize("around", ["{}\n", "{}\r\n", " {} ", "\t{}\n\n"])
def test_white_space_around_a_secret_is_no_part_of_it_wherever_it_comes_from(around: str, tmp_path: Path) -> None:
    for text, environ in sources_of(around.format(CANARY), tmp_path / "token"):
        token = parse({"token": text}, environ).token
        assert token is not None
        assert token.reveal() == CANARY


@pytest.mark.parametrize("inside", ["\n", "\r\n", "\t", "\0", "\x1b", "\x7f", "\u200b", "\ufeff", "\xa0"])
def test_secret_with_a_character_that_does_not_print_is_refused_and_not_shown(inside: str, tmp_path: Path) -> None:
    for text, environ in sources_of(f"canary{inside}9f27c1", tmp_path / "token"):
        error = refused({"token": text}, environ)
        assert error.code == "OPTION_ILLEGAL"
        said = (
            "a NUL character"
            if inside == "\0" and text.startswith("canary")
            else f"the character U+{ord(inside[0]):04X}"
        )
        assert f"token holds {said}" in str(error)
        assert "canary" not in "".join(traceback.format_exception(error))


def test_secret_from_the_environment_that_is_no_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environb, b"SHOP_TOKEN", b"canary\xff")
    error = refused({"token": "env:SHOP_TOKEN"}, dict(os.environ))
    assert (error.code, "canary" in str(error)) == ("OPTION_ILLEGAL", False)
    assert refused({"token": "env:BLANK"}, {"BLANK": " \n"}).code == "OPTION_SECRET_UNREADABLE"
    assert refused({"token": "file:/a\0b"}).code == "OPTION_ILLEGAL"


def test_secret_of_several_lines_keeps_them_and_holds_no_zero_byte(tmp_path: Path) -> None:
    pem = "-----BEGIN KEY-----\r\nabc\n\tdef\n-----END KEY-----"
    for text, environ in sources_of(f"{pem}\n", tmp_path / "key"):
        pem_key = parse({"pemKey": text}, environ).pem_key
        assert pem_key is not None
        assert pem_key.reveal() == pem
    for text, environ in sources_of(pem.replace("abc", "a\0c"), tmp_path / "key"):
        said = str(refused({"pemKey": text}, environ))
        assert "pemKey holds a NUL character" in said or "pemKey holds the character U+0000" in said


def test_value_of_a_sensitive_option_is_not_shown() -> None:
    error = refused({"keyfile": '{"private_key": "do-not-show"}'})
    assert "keyFile cannot be ***" in str(error)
    assert "do-not-show" not in str(error)
