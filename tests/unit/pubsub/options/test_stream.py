from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from connectors.core.errors import OptionError
from connectors.core.options.declaration import declared_options
from connectors.pubsub.options.client import Transport, decide_transport
from connectors.pubsub.options.source import parse_read_options
from connectors.pubsub.options.stream import (
    STREAM_SCHEMA,
    PubSubStreamOptions,
    SpoolDurability,
    StartingPosition,
    parse_stream_options,
)

LEAST = {"projectid": "shop", "subscriptionid": "orders", "spoollocation": "/data/spool"}
GOOGLE = Transport("pubsub.googleapis.com:443", secure=True, local=False)


def parse(raw: dict[str, str], environ: dict[str, str] | None = None) -> PubSubStreamOptions:
    return parse_stream_options(raw, environ or {})


def refused(raw: dict[str, str], environ: dict[str, str] | None = None) -> OptionError:
    with pytest.raises(OptionError) as caught:
        parse(raw, environ)
    assert "\n" not in str(caught.value)
    return caught.value


def test_least_options_give_the_documented_defaults() -> None:
    options = parse(LEAST)
    assert options.subscription == "projects/shop/subscriptions/orders"
    assert (options.project, options.topic) == ("shop", None)
    assert options.transport == GOOGLE
    assert options.spool_folder == Path("/data/spool")
    assert options.spool_durability is SpoolDurability.DURABLE
    assert options.starting_position is StartingPosition.COMMITTED
    assert (options.partition_bytes, options.max_partitions) == (16 << 20, 8)
    assert (options.max_records_per_trigger, options.max_bytes_per_trigger) == (None, None)
    assert options.dedup_horizon is None
    assert (options.fetchers, options.max_fetch_period, options.segment_bytes) == (1, 0.1, 64 << 20)
    assert (options.fail_on_data_loss, options.allow_insecure) == (True, False)
    assert (options.start_timeout, options.available_now_quiet, options.available_now_max_wait) == (10, 10, 300)
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


@pytest.mark.parametrize("key", ["clientEmail", "clientId", "privateKey", "privateKeyId", "serviceCredential"])
def test_credentials_of_the_closed_product_are_refused_with_ours(key: str) -> None:
    error = refused(LEAST | {key.lower(): "do-not-show"})
    assert "Use credentialsFile instead." in str(error)
    assert "do-not-show" not in str(error)


def test_every_option_is_documented_and_its_default_is_in_its_range() -> None:
    rows = declared_options(PubSubStreamOptions).values()
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
    assert "spoolDurability=ephemeral" in str(error)


def test_ephemeral_spool_picks_one_folder_for_each_subscription(tmp_path: Path) -> None:
    def folder(subscription: str, **more: str) -> Path:
        raw = {"projectid": "p", "subscriptionid": subscription, "spooldurability": "ephemeral", **more}
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
    assert str(error).endswith("gcloud pubsub subscriptions delete orders --project=shop")
    assert parse(LEAST | {"deletesubscriptiononstreamstop": "false"}) == parse(LEAST)


# -- where the service is ---------------------------------------------------------------------------------------


def plain(target: str, *, local: bool = True) -> Transport:
    return Transport(target, secure=False, local=local)


@pytest.mark.parametrize(
    ("endpoint", "emulator", "allow_insecure", "transport"),
    [
        (None, None, False, GOOGLE),
        (None, "", False, GOOGLE),
        (None, None, True, GOOGLE),
        (None, "localhost:8085", False, plain("localhost:8085")),
        (None, "emulator:8085", False, plain("emulator:8085")),
        (None, "[::1]:8085", False, plain("[::1]:8085")),
        (None, "http://emulator:8085", False, plain("emulator:8085")),
        ("localhost:9000", None, False, plain("localhost:9000")),
        ("127.0.0.1:9000", "other:1", False, plain("127.0.0.1:9000")),
        ("127.9.9.9:9000", None, False, plain("127.9.9.9:9000")),
        ("[::1]:9000", None, False, plain("[::1]:9000")),
        ("http://localhost:9000/", None, False, plain("localhost:9000")),
        ("emulator:8085", "emulator:8085", False, plain("emulator:8085")),
        ("emulator:8085", None, True, plain("emulator:8085", local=False)),
        ("http://emulator:8085", None, True, plain("emulator:8085", local=False)),
        (
            "us-central1-pubsub.googleapis.com",
            None,
            False,
            Transport("us-central1-pubsub.googleapis.com:443", secure=True, local=False),
        ),
        (
            "us-central1-pubsub.googleapis.com:443",
            None,
            False,
            Transport("us-central1-pubsub.googleapis.com:443", secure=True, local=False),
        ),
        ("https://proxy:8443", None, True, Transport("proxy:8443", secure=True, local=False)),
        ("https://localhost:8443", None, False, Transport("localhost:8443", secure=True, local=True)),
        ("localhost.example.com:1", None, False, Transport("localhost.example.com:1", secure=True, local=False)),
        ("127.0.0.1.example.com:1", None, False, Transport("127.0.0.1.example.com:1", secure=True, local=False)),
        ("10.0.0.1:1", None, False, Transport("10.0.0.1:1", secure=True, local=False)),
    ],
)
def test_plaintext_only_to_loopback_an_emulator_or_where_it_is_allowed(
    endpoint: str | None,
    emulator: str | None,
    allow_insecure: bool,
    transport: Transport,
) -> None:
    assert decide_transport(endpoint, emulator, allow_insecure=allow_insecure) == transport


def test_plaintext_to_anywhere_else_is_refused() -> None:
    error = refused(LEAST | {"endpoint": "http://emulator:8085"})
    assert "allowInsecure=true" in str(error)
    assert "endpoint" in str(error)
    assert parse(LEAST | {"endpoint": "http://emulator:8085", "allowinsecure": "true"}).transport.secure is False


def test_emulator_of_the_environment_is_honoured_and_the_option_wins() -> None:
    environ = {"PUBSUB_EMULATOR_HOST": "localhost:8085"}
    assert parse(LEAST, environ).transport.target == "localhost:8085"
    assert parse(LEAST | {"endpoint": "localhost:1"}, environ).transport.target == "localhost:1"


def test_emulator_on_another_machine_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert parse(LEAST, {"PUBSUB_EMULATOR_HOST": "warned.example:8085"}).transport.target == "warned.example:8085"
        parse(LEAST, {"PUBSUB_EMULATOR_HOST": "localhost:8085"})
    (line,) = caplog.messages
    assert line.startswith("[PUBSUB_EMULATOR] PUBSUB_EMULATOR_HOST names the emulator warned.example:8085")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("credentialsFile", {"credentialsfile": "/key.json"}),
        ("clientEmail", {"clientemail": "a@example.com", "privatekey": "x"}),
    ],
)
def test_emulator_never_beats_credentials_in_silence(
    name: str, more: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    raw = {**LEAST, **more, "schemamode": "databricks"} if name == "clientEmail" else {**LEAST, **more}
    with pytest.raises(OptionError, match=rf"OPTION_CONFLICT.*{name}.*PUBSUB_EMULATOR_HOST") as caught:
        parse_read_options(raw, {"PUBSUB_EMULATOR_HOST": "emulator.example:8085"})
    assert "emulator.example:8085" in caught.value.what
    port = 1 + len(name)
    parse_read_options(raw, {"PUBSUB_EMULATOR_HOST": f"localhost:{port}"})
    (line,) = caplog.messages
    assert f"localhost:{port}, so the option {name} is not used" in line
    parse_read_options({**raw, "endpoint": "https://pubsub.googleapis.com"}, {"PUBSUB_EMULATOR_HOST": "localhost:9"})
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("value", ["localhost", "localhost:x", "a b:1", "localhost:99999"])
def test_malformed_emulator_variable_is_named(value: str) -> None:
    assert "PUBSUB_EMULATOR_HOST" in str(refused(LEAST, {"PUBSUB_EMULATOR_HOST": value}))


@pytest.mark.parametrize(
    "endpoint", ["", "host:port", "host:70000", "a/b:1", "ftp://host:1", "user:pw@host:1", "unix:/a", ":80"]
)
def test_malformed_endpoint_is_refused(endpoint: str) -> None:
    error = refused(LEAST | {"endpoint": endpoint})
    assert error.code == "OPTION_ILLEGAL"
    assert "endpoint" in str(error)


def test_plaintext_endpoint_needs_a_port() -> None:
    assert "no port" in str(refused(LEAST | {"endpoint": "localhost"}))


def test_credentials_and_plaintext_to_another_machine_are_a_conflict_that_names_both() -> None:
    raw = LEAST | {"endpoint": "emulator:8085", "allowinsecure": "true", "credentialsfile": "/key.json"}
    error = refused(raw)
    assert error.code == "OPTION_CONFLICT"
    assert "credentialsFile" in str(error)
    assert "allowInsecure" in str(error)


def test_key_pasted_into_credentials_file_is_not_shown() -> None:
    assert "do-not-show" not in str(refused(LEAST | {"credentialsfile": '{"private_key": "do-not-show"}'}))
