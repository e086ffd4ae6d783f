from __future__ import annotations

import pickle
import subprocess
import sys
import traceback
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from connectors.core.errors import CredentialsError, OptionError
from connectors.core.options.declaration import declared_options
from connectors.pubsub.client.client import PubSubClient
from connectors.pubsub.client.credentials import key_file_content
from connectors.pubsub.options.client import GOOGLE, ServiceAccount
from connectors.pubsub.options.kinds import SchemaMode
from connectors.pubsub.options.source import PubSubReadOptions, parse_read_options
from connectors.pubsub.schema import STREAM_SCHEMA
from connectors.pubsub.source.fetcher import PubSubFetchSettings
from connectors.spool.fetching.messages import from_json, to_json
from connectors.spool.options import SegmentCompression, StartingPosition

LEAST = {"projectid": "shop", "subscriptionid": "orders", "spoollocation": "/data/spool"}
CANARY = "canary-c01d"
ACCOUNT = {"clientemail": "reader@shop.test", "privatekey": CANARY}


def parse(
    raw: dict[str, str], environ: dict[str, str] | None = None, *, streaming: bool | None = None
) -> PubSubReadOptions:
    return parse_read_options(raw, environ or {}, streaming=streaming)


def refused(
    raw: dict[str, str], environ: dict[str, str] | None = None, *, streaming: bool | None = None
) -> OptionError:
    with pytest.raises(OptionError) as caught:
        parse(raw, environ, streaming=streaming)
    assert "\n" not in str(caught.value)
    assert CANARY not in str(caught.value)
    return caught.value


def parse_more(raw: dict[str, str], *, streaming: bool | None = None) -> PubSubReadOptions:
    return parse(LEAST | raw, streaming=streaming)


def refused_more(raw: dict[str, str], *, streaming: bool | None = None) -> OptionError:
    return refused(LEAST | raw, streaming=streaming)


def test_least_options_give_the_documented_defaults() -> None:
    options = parse(LEAST)
    assert options.subscription == "projects/shop/subscriptions/orders"
    assert (options.project, options.topic) == ("shop", None)
    assert options.transport == GOOGLE
    assert options.spool_folder == Path("/data/spool")
    assert options.starting_position is StartingPosition.COMMITTED
    assert (options.partition_bytes, options.max_partitions) == (16 << 20, 8)
    assert (options.max_records_per_trigger, options.max_bytes_per_trigger) == (None, None)
    assert options.dedup_horizon is None
    assert (options.fetchers, options.max_fetch_period) == (1, 0.1)
    assert (options.fail_on_data_loss, options.allow_insecure) == (True, False)
    assert (options.start_timeout, options.available_now_quiet, options.available_now_max_wait) == (10, 10, None)
    assert options.spool_retention == 0


def test_parsed_options_are_frozen_and_pickle() -> None:
    options = parse(LEAST)
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(FrozenInstanceError):
        options.fetchers = 2  # type: ignore[misc]


def test_worker_that_unpickles_options_imports_neither_pydantic_nor_an_sdk(tmp_path: Path) -> None:
    path = tmp_path / "options.pickle"
    path.write_bytes(pickle.dumps(parse(LEAST)))
    code = (
        "import pickle, sys\n"
        f"options = pickle.load(open({str(path)!r}, 'rb'))\n"
        "assert options.project == 'shop'\n"
        "bad = {'pydantic', 'grpc', 'google.cloud', 'google.auth', 'google.pubsub_v1'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-W", "ignore::ResourceWarning", "-c", code], check=True)


def test_names_of_the_closed_product_are_aliases() -> None:
    options = parse(LEAST | {"numfetchpartitions": "3", "maxrecordsperfetch": "1000", "maxfetchperiod": "10s"})
    assert (options.fetchers, options.segment_records, options.max_fetch_period) == (3, 1000, 10.0)
    assert parse(LEAST | {"maxbytespertrigger": "1g"}).max_bytes_per_trigger == 1 << 30


def test_every_option_is_documented_and_its_default_is_in_its_range() -> None:
    rows = declared_options(PubSubReadOptions).values()
    assert len({row.name.lower() for row in rows}) == len(rows)
    assert all(row.doc.endswith(".") for row in rows)
    defaults = {row.name.lower(): row.default for row in rows if row.default is not None}
    assert parse(LEAST | defaults) == parse(LEAST)


def test_schema_has_the_columns_that_users_are_promised() -> None:
    assert STREAM_SCHEMA.simpleString() == (
        "struct<messageId:string,payload:binary,attributes:map<string,string>,orderingKey:string,"
        "publishTimestamp:timestamp,deliveryAttempt:int,subscription:string,offset:bigint>"
    )


# -- names of the subscription and the topic --------------------------------------------------------------------


def test_full_path_of_the_subscription_needs_no_project() -> None:
    options = parse({"subscriptionid": "projects/shop/subscriptions/orders", "spoollocation": "/data/spool"})
    assert (options.subscription, options.project) == ("projects/shop/subscriptions/orders", "shop")


def test_full_path_and_equal_project_pass() -> None:
    assert parse(LEAST | {"subscriptionid": "projects/shop/subscriptions/orders"}).project == "shop"


def test_full_path_of_another_project_is_a_conflict_that_names_both() -> None:
    error = refused(LEAST | {"subscriptionid": "projects/other/subscriptions/orders"})
    assert error.code == "OPTION_CONFLICT"
    for part in ("projectId", "subscriptionId", "shop", "other"):
        assert part in str(error)


def test_subscription_without_project_is_refused() -> None:
    error = refused({"subscriptionid": "orders", "spoollocation": "/data/spool"})
    assert error.code == "OPTION_MISSING"
    assert "projectId" in str(error)
    assert "projects/PROJECT/subscriptions/ID" in str(error)


@pytest.mark.parametrize(
    ("given", "topic"),
    [("orders", "projects/shop/topics/orders"), ("projects/other/topics/orders", "projects/other/topics/orders")],
)
def test_topic_is_an_id_in_the_project_or_a_full_path(given: str, topic: str) -> None:
    assert parse(LEAST | {"topicid": given}).topic == topic


@pytest.mark.parametrize(
    "raw",
    [
        {"subscriptionid": "projects/shop/topics/orders"},
        {"subscriptionid": "projects/shop/subscriptions/"},
        {"subscriptionid": "a/b"},
        {"subscriptionid": "two words"},
        {"topicid": "projects/shop/subscriptions/orders"},
        {"projectid": "projects/shop"},
    ],
)
def test_malformed_names_are_refused(raw: dict[str, str]) -> None:
    assert refused(LEAST | raw).code == "OPTION_ILLEGAL"


# -- the spool --------------------------------------------------------------------------------------------------


def test_durable_spool_needs_a_location() -> None:
    error = refused({key: value for key, value in LEAST.items() if key != "spoollocation"})
    assert error.code == "OPTION_MISSING"
    assert "spoolLocation" in str(error)
    assert "spoolLocation=ephemeral" in str(error)


def test_ephemeral_spool_picks_one_folder_for_each_subscription(tmp_path: Path) -> None:
    def folder(subscription: str, **more: str) -> Path:
        raw = {"projectid": "p", "subscriptionid": subscription, "spoollocation": "ephemeral", **more}
        return parse(raw, {"TMPDIR": str(tmp_path)}).spool_folder

    assert folder("a") == folder("a")
    assert (
        len({folder("a"), folder("b"), folder("a", endpoint="localhost:1"), folder("a", endpoint="localhost:2")}) == 4
    )
    assert folder("a").is_relative_to(tmp_path)
    assert folder("a", spoollocation="/mine") == Path("/mine")


@pytest.mark.parametrize(
    ("location", "root"),
    [
        ("s3://bucket/x", "s3://bucket/x"),
        ("s3a://bucket//x/", "s3://bucket/x"),
        ("S3://bucket", "s3://bucket"),
        ("gs://bucket/x/y", "gs://bucket/x/y"),
        ("az://container/x", "az://container/x"),
        ("abfss://data@account.dfs.core.windows.net/x", "abfss://data@account.dfs.core.windows.net/x"),
        ("abfs://data@account.blob.core.windows.net/x", "abfss://data@account.dfs.core.windows.net/x"),
    ],
)
def test_the_url_of_an_object_store_is_a_location(location: str, root: str) -> None:
    options = parse(LEAST | {"spoollocation": location})
    assert options.spool_folder == root
    assert options.max_fetch_period == 1.0
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_fetch_period_that_is_given_counts_on_an_object_store_too() -> None:
    options = parse(LEAST | {"spoollocation": "s3://bucket/x", "maxFetchPeriod": "100ms"})
    assert options.max_fetch_period == 0.1


@pytest.mark.parametrize(
    "location",
    [
        "hdfs://name/x",
        "http://bucket/x",
        "s3:///x",
        "s3://",
        "s3://bucket/x?y=1",
        "s3://bucket/../x",
        "s3://key:s3cr3t@bucket/x",
        "abfss://account.dfs.core.windows.net/x",
        "abfss://data@elsewhere.example/x",
    ],
)
def test_other_urls_are_refused(location: str) -> None:
    error = refused(LEAST | {"spoollocation": location})
    assert error.code == "OPTION_ILLEGAL"
    assert "spoolLocation" in str(error)
    assert "s3cr3t" not in str(error)


def test_the_access_to_an_object_store_comes_from_its_options_and_shows_no_secret() -> None:
    raw = {"spoolendpoint": "https://minio.example/", "spoolregion": "eu", "spoolkeyid": "AK1", "spoolsecret": "env:S"}
    options = parse(LEAST | {"spoollocation": "s3://bucket/x"} | raw, {"S": "s3cr3t"})
    access = options.store_access
    assert (access.endpoint, access.region, access.key_id) == ("https://minio.example", "eu", "AK1")
    assert access.secret is not None
    assert access.secret.reveal() == "s3cr3t"
    assert "s3cr3t" not in repr(options) + repr(access)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        ({"spoolregion": "eu"}, "OPTION_CONFLICT"),
        ({"spoollocation": "gs://bucket/x", "spoolkeyid": "k", "spoolsecret": "s3cr3t"}, "OPTION_CONFLICT"),
        (
            {
                "spoollocation": "gs://bucket/x",
                "spoolendpoint": "http://127.0.0.1:4443",
                "spoolcredentialsfile": "/s3cr3t.json",
            },
            "OPTION_CONFLICT",
        ),
        ({"spoollocation": "s3://bucket/x", "spoolkeyid": "k"}, "OPTION_MISSING"),
        ({"spoollocation": "s3://bucket/x", "spoolendpoint": "http://minio.example"}, "OPTION_ILLEGAL"),
        ({"spoollocation": "s3://bucket/x", "spoolendpoint": "https://k:s3cr3t@minio.example"}, "OPTION_ILLEGAL"),
        ({"spoollocation": "s3://bucket/x", "spoolendpoint": "minio.example"}, "OPTION_ILLEGAL"),
    ],
)
def test_access_that_cannot_be_meant_is_refused(raw: dict[str, str], code: str) -> None:
    error = refused(LEAST | raw)
    assert error.code == code
    assert "s3cr3t" not in str(error)


def test_relative_location_is_refused() -> None:
    assert "relative" in str(refused(LEAST | {"spoollocation": "spool"}))


def test_file_url_is_a_location() -> None:
    assert parse(LEAST | {"spoollocation": "file:///data/spool"}).spool_folder == Path("/data/spool")


@pytest.mark.parametrize(
    "raw",
    [
        {"maxspoolbytes": "0"},
        {"deduphorizon": "9m"},
        {"deduphorizon": "32d"},
        {"deduphorizon": "600"},
        {"fetchers": "0"},
        {"streams": "101"},
        {"maxfetchperiod": "0s"},
        {"startingposition": "newest"},
        {"maxrecordspertrigger": "0"},
        {"maxpartitions": "-1"},
        {"failondataloss": "maybe"},
    ],
)
def test_value_out_of_its_range_is_refused(raw: dict[str, str]) -> None:
    error = refused(LEAST | raw)
    assert error.code == "OPTION_ILLEGAL"
    assert "Give " in str(error)


@pytest.mark.parametrize(("text", "seconds"), [("auto", None), ("10m", 600.0), ("31d", 2_678_400.0)])
def test_dedup_horizon_is_auto_or_a_duration(text: str, seconds: float | None) -> None:
    assert parse(LEAST | {"deduphorizon": text}).dedup_horizon == seconds


def test_delete_subscription_on_stream_stop_is_refused_with_the_one_command_that_deletes() -> None:
    error = refused(LEAST | {"deletesubscriptiononstreamstop": "true"})
    assert "deleteSubscriptionOnStreamStop" in str(error)
    assert "crash" in str(error)
    assert "connectors spool delete-subscriptions" in str(error)
    assert "deletes projects/shop/subscriptions/orders" in str(error)
    assert error.code == "OPTION_UNKNOWN"
    assert str(refused(LEAST | {"deletesubscriptiononstreamstop": "false"})) == str(error)


def test_defaults_are_those_of_the_docs() -> None:
    options = parse_more({})
    assert (options.schema_mode, options.dedup_attribute) == (SchemaMode.NATIVE, None)
    assert (options.segment_compression, options.credentials) == (SegmentCompression.NONE, None)
    rows = declared_options(PubSubReadOptions).values()
    assert len({row.name.lower() for row in rows}) == len(rows)
    assert all(row.doc.endswith(".") for row in rows)


@pytest.mark.parametrize("start", ["s3://bucket/a", "file:///a", "gs://bucket/a", "file:/a"])
@pytest.mark.parametrize("part", ["?b", "#b", "?", "\tb", "\nb"])
def test_a_location_of_which_a_part_would_be_cut_off_is_refused(start: str, part: str) -> None:
    assert refused_more({"spoollocation": f"{start}{part}c"}).code == "OPTION_ILLEGAL"


def test_a_stream_begins_at_what_was_committed_and_a_batch_at_the_oldest_row() -> None:
    assert parse_more({}, streaming=True).starting_position is StartingPosition.COMMITTED
    assert parse_more({}, streaming=False).starting_position is StartingPosition.EARLIEST
    given = {"startingposition": "latest", "endingposition": "12"}
    options = parse_more(given, streaming=False)
    assert (options.starting_position, options.ending_position) == (StartingPosition.LATEST, 12)
    assert parse_more({"startingposition": "7"}, streaming=False).starting_position == 7


@pytest.mark.parametrize("value", ["-1", "1.5", "newest", "", "1_0", "\u0661", str(2**63)])
def test_a_position_that_is_neither_a_word_nor_a_number_is_refused(value: str) -> None:
    assert refused_more({"startingposition": value}).code == "OPTION_ILLEGAL"
    assert "a position" in str(refused_more({"endingposition": value}))


def test_options_of_batches_and_positions_are_refused_in_a_stream() -> None:
    assert "endingPosition is for batch reads" in str(refused_more({"endingposition": "latest"}, streaming=True))
    parse_more({"endingposition": "latest"}, streaming=False)
    assert "a stream begins at a word" in str(refused_more({"startingposition": "7"}, streaming=True))


@pytest.mark.parametrize("value", ["", "x" * 257, "é" * 129])
def test_a_key_that_no_attribute_can_have_is_refused(value: str) -> None:
    assert "dedupAttribute" in str(refused_more({"dedupattribute": value}))


# -- credentials by options ---------------------------------------------------------------------------------------


def test_a_service_account_by_options_is_what_its_key_file_would_hold() -> None:
    options = parse_more(
        ACCOUNT | {"clientid": "12", "privatekeyid": "34", "privatekey": "-----BEGIN\\nkey\\n-----END\\n"}
    )
    assert isinstance(options.credentials, ServiceAccount)
    assert key_file_content(options.credentials) == {
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
            ["clientEmail", "allowInsecure"],
        ),
        ({**ACCOUNT, "servicecredential": "x"}, "OPTION_UNKNOWN", ["serviceCredential", "credentialProvider"]),
    ],
)
def test_half_an_account_and_one_too_many_are_refused(raw: dict[str, str], code: str, names: list[str]) -> None:
    error = refused_more(raw)
    assert error.code == code
    assert all(name.lower() in str(error).lower() for name in names)


def test_a_private_key_shows_nowhere_and_reaches_the_fetchers() -> None:
    options = parse_more(ACCOUNT)
    account = options.credentials
    assert isinstance(account, ServiceAccount)
    settings = PubSubFetchSettings("projects/shop/subscriptions/orders", GOOGLE, service_account=account)
    shown = [repr(options), str(options), repr(account), repr(settings)]
    assert not [text for text in shown if CANARY in text]
    assert pickle.loads(pickle.dumps(options)).credentials == account
    assert from_json(to_json(settings), PubSubFetchSettings, "settings").service_account == account


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
    assert parse_more({"startingtimestamp": text}, streaming=True).starting_timestamp == milliseconds * 1000


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
    error = refused_more({"startingtimestamp": text}, streaming=True)
    assert error.code == "OPTION_ILLEGAL"
    assert reason in str(error)
