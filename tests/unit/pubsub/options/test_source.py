"""The options of a reader beyond those of a stream: batches, rows, credentials by options."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path

import pytest

from connectors.core.errors import CredentialsError, OptionError
from connectors.core.options.declaration import declared_options
from connectors.pubsub.client.client import PubSubClient
from connectors.pubsub.options.client import GOOGLE
from connectors.pubsub.options.credentials import ServiceAccount
from connectors.pubsub.options.source import BatchMode, PubSubReadOptions, SegmentCompression, parse_read_options
from connectors.pubsub.options.stream import StartingPosition
from connectors.pubsub.schema import SchemaMode
from connectors.pubsub.source.fetcher import PubSubFetchSettings

LEAST = {"projectid": "shop", "subscriptionid": "orders", "spoollocation": "/data/spool"}
CANARY = "canary-c01d"
ACCOUNT = {"clientemail": "reader@shop.test", "privatekey": CANARY}


def parse(raw: dict[str, str], *, streaming: bool | None = None) -> PubSubReadOptions:
    return parse_read_options(LEAST | raw, {}, streaming=streaming)


def refused(raw: dict[str, str], *, streaming: bool | None = None) -> OptionError:
    with pytest.raises(OptionError) as caught:
        parse(raw, streaming=streaming)
    assert "\n" not in str(caught.value)
    assert CANARY not in str(caught.value)
    return caught.value


def test_defaults_are_those_of_the_docs() -> None:
    options = parse({})
    assert (options.batch_mode, options.peek_time, options.peek_max_rows) == (BatchMode.SPOOL, 10.0, 1000)
    assert (options.schema_mode, options.dedup_attribute) == (SchemaMode.NATIVE, None)
    assert (options.segment_compression, options.credentials) == (SegmentCompression.NONE, None)
    rows = declared_options(PubSubReadOptions).values()
    assert len({row.name.lower() for row in rows}) == len(rows)
    assert all(row.doc.endswith(".") for row in rows)


@pytest.mark.parametrize("start", ["s3://bucket/a", "file:///a", "gs://bucket/a", "file:/a"])
@pytest.mark.parametrize("part", ["?b", "#b", "?", "\tb", "\nb"])
def test_a_location_of_which_a_part_would_be_cut_off_is_refused(start: str, part: str) -> None:
    assert refused({"spoollocation": f"{start}{part}c"}).code == "OPTION_ILLEGAL"


def test_a_stream_begins_at_what_was_committed_and_a_batch_at_the_oldest_row() -> None:
    assert parse({}, streaming=True).starting_position is StartingPosition.COMMITTED
    assert parse({}, streaming=False).starting_position is StartingPosition.EARLIEST
    given = {"startingposition": "latest", "endingposition": "12"}
    options = parse(given, streaming=False)
    assert (options.starting_position, options.ending_position) == (StartingPosition.LATEST, 12)
    assert parse({"startingposition": "7"}, streaming=False).starting_position == 7


@pytest.mark.parametrize("value", ["-1", "1.5", "newest", "", "1_0", "\u0661", str(2**63)])
def test_a_position_that_is_neither_a_word_nor_a_number_is_refused(value: str) -> None:
    assert refused({"startingposition": value}).code == "OPTION_ILLEGAL"
    assert "a position" in str(refused({"endingposition": value}))


def test_options_of_batches_and_positions_are_refused_in_a_stream() -> None:
    for name in ("batchMode=spool", "endingPosition=latest", "peekTime=1s", "peekMaxRows=1"):
        key, _, value = name.partition("=")
        assert f"{key} is for batch reads" in str(refused({key.lower(): value}, streaming=True))
        more = {"batchmode": "peek"} if key.startswith("peek") else {}
        parse({key.lower(): value, **more}, streaming=False)
    assert "a stream begins at a word" in str(refused({"startingposition": "7"}, streaming=True))


def test_a_peek_needs_no_spool_location_and_any_other_read_does() -> None:
    raw = {key: value for key, value in LEAST.items() if key != "spoollocation"}
    folder = parse_read_options({**raw, "batchmode": "peek"}, {"TMPDIR": "/temporary"}).spool_folder
    assert folder.is_relative_to("/temporary")
    with pytest.raises(OptionError, match="spoolLocation"):
        parse_read_options(raw, {})
    assert parse({"batchmode": "peek"}).spool_folder == Path("/data/spool")


@pytest.mark.parametrize("value", ["", "x" * 257, "é" * 129])
def test_a_key_that_no_attribute_can_have_is_refused(value: str) -> None:
    assert "dedupAttribute" in str(refused({"dedupattribute": value}))


# -- credentials by options ---------------------------------------------------------------------------------------


def test_a_service_account_by_options_is_what_its_key_file_would_hold() -> None:
    options = parse(ACCOUNT | {"clientid": "12", "privatekeyid": "34", "privatekey": "-----BEGIN\\nkey\\n-----END\\n"})
    assert isinstance(options.credentials, ServiceAccount)
    assert options.credentials.to_key_file() == {
        "type": "service_account",
        "client_email": "reader@shop.test",
        "client_id": "12",
        "private_key": "-----BEGIN\nkey\n-----END\n",
        "private_key_id": "34",
        "token_uri": "https://oauth2.googleapis.com/token",
    }


@pytest.mark.parametrize(
    ("raw", "code", "names"),
    [
        ({"clientemail": "a@b"}, "OPTION_MISSING", ["privateKey", "clientEmail"]),
        ({"privatekey": CANARY}, "OPTION_MISSING", ["privateKey", "clientEmail"]),
        ({"privatekeyid": CANARY}, "OPTION_MISSING", ["privateKeyId", "clientEmail"]),
        ({**ACCOUNT, "credentialsfile": "/key.json"}, "OPTION_CONFLICT", ["clientEmail", "credentialsFile"]),
        (
            {**ACCOUNT, "endpoint": "emulator:8085", "allowinsecure": "true"},
            "OPTION_CONFLICT",
            ["privateKey", "allowInsecure"],
        ),
        ({**ACCOUNT, "servicecredential": "x"}, "OPTION_UNKNOWN", ["serviceCredential", "credentialsFile"]),
    ],
)
def test_half_an_account_and_one_too_many_are_refused(raw: dict[str, str], code: str, names: list[str]) -> None:
    error = refused(raw)
    assert error.code == code
    assert all(name.lower() in str(error).lower() for name in names)


def test_a_private_key_shows_nowhere_and_reaches_the_fetchers() -> None:
    options = parse(ACCOUNT)
    account = options.credentials
    assert isinstance(account, ServiceAccount)
    settings = PubSubFetchSettings("projects/shop/subscriptions/orders", GOOGLE, service_account=account)
    shown = [repr(options), str(options), repr(account), repr(settings)]
    assert not [text for text in shown if CANARY in text]
    assert pickle.loads(pickle.dumps(options)).credentials == account
    assert PubSubFetchSettings.from_json(settings.to_json()).service_account == account


def test_a_private_key_from_the_environment_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from a file\n")
    for text, value in (("env:KEY", "from the environment"), (f"file:{tmp_path}/key", "from a file")):
        raw = LEAST | ACCOUNT | {"privatekey": text}
        credentials = parse_read_options(raw, {"KEY": "from the environment"}).credentials
        assert isinstance(credentials, ServiceAccount)
        assert credentials.private_key == value


def test_a_private_key_that_is_none_is_an_error_that_does_not_show_it() -> None:
    with pytest.raises(CredentialsError, match=r"CREDENTIALS_UNREADABLE.*reader@shop\.test.*BEGIN") as caught:
        PubSubClient(GOOGLE, ServiceAccount("reader@shop.test", f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n"))
    assert CANARY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("946684800000", 946_684_800_000),
        ("1763750000123", 1_763_750_000_123),
        ("2025-11-21T19:33:20.123+01:00", 1_763_750_000_123),
        ("1970-01-01T00:00:01Z", 1000),
        ("253402300799999", 253_402_300_799_999),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_a_time_to_seek_to_is_a_text_or_milliseconds(text: str, milliseconds: int) -> None:
    assert parse({"startingtimestamp": text}, streaming=True).starting_timestamp == milliseconds * 1000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1763750000", "as milliseconds it is before the year 2000; seconds are not taken"),
        ("20261121", "before the year 2000"),
        ("946684799999", "before the year 2000"),
        ("253402300800000", "after the year 9999"),
        ("999999999999999", "after the year 9999"),
        ("9999-12-31T23:59:59-14:00", "after the year 9999"),
        ("\u0661\u0667\u0666\u0663\u0667\u0665\u0660\u0660\u0660\u0660\u0660\u0660\u0660", "neither a time"),
    ],
)
def test_a_time_to_seek_to_that_cannot_be_meant_is_refused(text: str, reason: str) -> None:
    error = refused({"startingtimestamp": text}, streaming=True)
    assert error.code == "OPTION_ILLEGAL"
    assert reason in str(error)


@pytest.mark.parametrize(
    ("name", "value", "mode"),
    [
        ("peekTime", "5s", "spool"),
        ("peekMaxRows", "10", "spool"),
        ("startingPosition", "latest", "peek"),
        ("endingPosition", "7", "peek"),
    ],
)
def test_an_option_that_the_batch_mode_does_not_use_is_refused(name: str, value: str, mode: str) -> None:
    raw = {"subscriptionId": "projects/shop/subscriptions/orders", "spoolLocation": "/data/spool", "batchMode": mode}
    parse_read_options(raw, {}, streaming=False)
    with pytest.raises(OptionError, match=f"The options {name} and batchMode conflict"):
        parse_read_options(raw | {name: value}, {}, streaming=False)
