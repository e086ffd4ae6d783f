"""Settings of the JVM's client: librdkafka takes each, or it is translated, ignored, or refused with what to use."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from connectors.core.errors import OptionError
from connectors.kafka.client.factory import check_settings, open_producer
from connectors.kafka.native.library import new_client
from connectors.kafka.options.client import ClientSettings, warn_once
from connectors.kafka.options.sink import parse_write_options
from connectors.kafka.options.source import parse_read_options
from tests.support.kafka_jvm_settings import CONSUMER, PRODUCER

BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9"}


def read(given: dict[str, str]) -> ClientSettings:
    raw = BROKER | {"subscribe": "orders"} | {f"kafka.{name}": value for name, value in given.items()}
    return parse_read_options(raw, {}, streaming=True).client


def written(given: dict[str, str], **options: str) -> ClientSettings:
    raw = BROKER | {"topic": "orders"} | options | {f"kafka.{name}": value for name, value in given.items()}
    return parse_write_options(raw, {}, streaming=True).client


def test_spaces_around_a_setting_are_no_part_of_it() -> None:
    given = {"security.protocol": " PLAINTEXT ", "isolation.level": "read_committed\n", "bootstrap.servers": " b:1 "}
    settings = read(given)
    check_settings(settings)
    wanted = {name: value.strip() for name, value in given.items()}
    assert {name: settings.get(name) for name in given} == wanted
    assert written({"acks": " all ", "compression.type": "gzip "}).get("acks") == "all"


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("one:9092, two:9093", "one:9092,two:9093"),
        ("one:9092,,two:9093,", "one:9092,two:9093"),
        ("INTERNAL://one:9092,SASL_SSL://two:9093", "one:9092,two:9093"),
        ("[::1]:9092", "[::1]:9092"),
        ("fe80::1%eth0:9092", "[fe80::1%eth0]:9092"),
        ("broker_1.kafka-0.svc:9092", "broker_1.kafka-0.svc:9092"),
        ("broker", "broker"),
    ],
)
def test_addresses_of_brokers_may_have_the_forms_of_the_jvm_client(given: str, taken: str) -> None:
    settings = read({"bootstrap.servers": given})
    assert settings.get("bootstrap.servers") == taken
    check_settings(settings)


@pytest.mark.parametrize(
    "given",
    [
        "one:99999",
        "one:0",
        "one:abc",
        "one:1 two:2",
        "one:1;two:2",
        "one:1\ntwo:2",
        "http://one:1/path",
        "me:word@one:1",
    ],
)
def test_an_address_that_would_be_looked_for_elsewhere_is_refused(given: str) -> None:
    with pytest.raises(OptionError, match=r"^\[OPTION_ILLEGAL\] .*kafka\.bootstrap\.servers cannot hold") as caught:
        read({"bootstrap.servers": given})
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("given", [",", " , "])
def test_a_list_without_a_broker_is_refused(given: str) -> None:
    with pytest.raises(OptionError, match="names no server"):
        written({"bootstrap.servers": given})


@pytest.mark.parametrize("name", ["delivery.timeout.ms", "retries", "batch.size", "max.in.flight", "socket.timeout.ms"])
@pytest.mark.parametrize("value", ["250s", "2m", "1e3", "0x10", "1_000", "1.5", "many", ""])
def test_a_number_with_anything_else_in_it_is_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=rf"The option kafka\.{name} cannot be '{value}'.*whole number"):
        written({name: value})


def test_a_number_with_leading_zeros_is_no_octal_one() -> None:
    settings = written({"retries": "010", "batch.size": "+016384", "linger.ms": "0.5"})
    assert [settings.get(name) for name in ("retries", "batch.size", "linger.ms")] == ["10", "16384", "0.5"]
    open_producer(settings, {})


def test_the_longest_pause_before_connecting_again_is_no_shorter_than_the_first() -> None:
    for given in (
        {"reconnect.backoff.ms": "15000"},
        {"reconnect.backoff.ms": "900", "reconnect.backoff.max.ms": "500"},
    ):
        settings = read(given)
        assert settings.get("reconnect.backoff.max.ms") == given["reconnect.backoff.ms"]
        check_settings(settings)


def test_what_was_read_is_checked_unless_the_user_says_otherwise() -> None:
    assert read({}).get("check.crcs") == "true"
    assert read({"check.crcs": "false"}).get("check.crcs") == "false"


MOVED = {"max.poll.records": "500", "max.block.ms": "60000", "metrics.num.samples": "2", "metric.reporters": "my.Class"}
PRODUCERS = {"buffer.memory": "x", "max.request.size": "1", "partitioner.class": "x", "key.serializer": "x"}


@pytest.mark.parametrize(
    ("parse", "given"),
    [(read, MOVED | PRODUCERS), (written, MOVED | {"key.deserializer": "x"})],
    ids=["source", "sink"],
)
def test_settings_that_have_no_meaning_here_are_ignored_with_one_warning_that_lists_them(
    parse: Callable[[dict[str, str]], ClientSettings], given: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    for _ in range(2):
        assert parse(given) == parse({})
    (line,) = caplog.messages
    assert line.startswith("[KAFKA_SETTING_IGNORED]")
    assert all(f"kafka.{name}" in line for name in given)


@pytest.mark.parametrize("parse", [read, written], ids=["source", "sink"])
def test_all_settings_that_are_refused_stand_in_one_error(
    parse: Callable[[dict[str, str]], ClientSettings],
) -> None:
    given = {
        "sasl.kerberos.kinit.cmd": "kinit",
        "ssl.protocol": "TLSv1.2",
        "socket.timeout.ms": "10s",
        "no.such.setting": "secret",
        "debug": "everything",
        "log_cb": "x",
    }
    with pytest.raises(OptionError) as caught:
        parse(given)
    assert all(name in caught.value.what for name in given)
    assert "secret" not in str(caught.value)
    for text in ("run a command", "without a unit", "spark-kafka-settings.md"):
        assert text in caught.value.action


@pytest.mark.parametrize("parse", [read, written], ids=["source", "sink"])
def test_settings_that_only_librdkafka_refuses_have_its_code_and_stand_in_one_error(
    parse: Callable[[dict[str, str]], ClientSettings],
) -> None:
    with pytest.raises(OptionError, match=r"^\[KAFKA_SETTING\] .*no\.such\.setting.*another") as caught:
        parse({"no.such.setting": "1", "another": "2"})
    assert "docs/how-to/spark-kafka-settings.md" in caught.value.action


@pytest.mark.parametrize(
    "name",
    [
        "plugin.library.paths",
        "ssl.engine.location",
        "ssl.engine.id",
        "ssl.providers",
        "sasl.kerberos.kinit.cmd",
        "test.mock.num.brokers",
    ],
)
@pytest.mark.parametrize("parse", [read, written], ids=["source", "sink"])
def test_a_setting_that_loads_code_runs_a_command_or_mocks_the_brokers_is_refused(
    parse: Callable[[dict[str, str]], ClientSettings], name: str
) -> None:
    with pytest.raises(OptionError, match=f"kafka.{name} is not supported"):
        parse({name: "/tmp/evil.so"})


def test_openssl_s_own_providers_can_be_named() -> None:
    assert read({"ssl.providers": "default,legacy"}).get("ssl.providers") == "default,legacy"


JAAS = 'PlainLoginModule required username="{}" password="{}";'


@pytest.mark.parametrize("parse", [read, written], ids=["source", "sink"])
@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"client.id": "shop\0x"}, "client.id"),
        ({"acks\0": "all"}, "acks"),
        ({"bootstrap.servers": "broker:1\0"}, "bootstrap.servers"),
        ({"group.id": "a\0b"}, "group.id"),
        ({"sasl.password": "hunter2\0x"}, "sasl.password"),
        ({"ssl.key.pem": "hunter2\0x"}, "ssl.key.pem"),
        ({"sasl.jaas.config": JAAS.format("me", "hunter2\0x")}, "sasl.jaas.config"),
    ],
    ids=str,
)
def test_a_nul_in_a_setting_or_a_password_is_refused(
    parse: Callable[[dict[str, str]], ClientSettings], given: dict[str, str], name: str
) -> None:
    with pytest.raises(OptionError, match=r"NUL character|cannot hold") as caught:
        parse(given)
    assert f"kafka.{name}" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("make", [new_client, lambda _, given: open_producer(ClientSettings(), given)])
def test_no_client_is_made_of_a_setting_with_a_nul(make: Callable[[int, dict[str, str]], object]) -> None:
    for given in ({"client.id": "shop\0x"}, {"client.id\0": "shop"}):
        with pytest.raises(OptionError, match="KAFKA_NUL"):
            make(0, given)


def test_options_of_asynchronous_progress_are_for_spark_alone() -> None:
    names = ("Enabled", "CheckpointIntervalMs")
    given = {f"asyncProgressTracking{name}": "true" for name in names}
    assert written({}, **given, _asyncProgressTrackingOverrideSinkSupportCheck="true") == written({})


def refusal(parse: Callable[[dict[str, str]], ClientSettings], given: dict[str, str]) -> OptionError | None:
    """The error that a setting is refused with, if it is."""
    try:
        parse(given)
    except OptionError as error:
        return error
    return None


@pytest.mark.parametrize("name", CONSUMER)
def test_the_source_takes_or_refuses_by_name_each_setting_of_the_jvm_client(name: str) -> None:
    given = {name: CONSUMER[name]}
    refused = refusal(read, given)
    if refused is None:
        check_settings(read(given))
    else:
        assert (refused.code in {"OPTION_ILLEGAL", "KAFKA_SETTING"}, bool(refused.action)) == (True, True)


@pytest.mark.parametrize("name", PRODUCER)
def test_the_sink_takes_or_refuses_by_name_each_setting_of_the_jvm_client(name: str) -> None:
    given = {name: PRODUCER[name]}
    refused = refusal(written, given)
    if refused is None:
        open_producer(written(given), {})
    else:
        assert (refused.code in {"OPTION_ILLEGAL", "KAFKA_SETTING"}, bool(refused.action)) == (True, True)


@pytest.mark.parametrize(
    "name",
    [
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
    ],
)
def test_secrets_of_an_oidc_client_are_not_shown(name: str) -> None:
    for settings in (read({name: "hidden"}), written({name: "hidden"})):
        assert "hidden" not in repr(settings)
        assert "hidden" in settings.revealed().values()


@pytest.mark.parametrize("parse", [read, written], ids=["source", "sink"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"ssl.key.pem": "canary1", "ssl.keystore.key": "canary2"},
            r"kafka\.ssl\.key\.pem and kafka\.ssl\.keystore\.key",
        ),
        ({"sasl.password": " "}, r"kafka\.sasl\.password is empty"),
        ({"sasl.password": "env:NOWHERE"}, r"kafka\.sasl\.password names the environment variable NOWHERE"),
        ({"sasl.password": "canary\n"}, None),
        ({"ssl.key.pem": "canary", "ssl.keystore.key": "canary"}, None),
    ],
    ids=str,
)
def test_a_secret_setting_has_one_value_and_is_never_shown(
    parse: Callable[[dict[str, str]], ClientSettings], given: dict[str, str], said: str | None
) -> None:
    if said is None:
        settings = parse(given)
        assert "canary" in settings.revealed().values()
        assert "canary" not in repr(settings)
        return
    with pytest.raises(OptionError, match=said) as caught:
        parse(given)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["error_cb", "stats_cb", "throttle_cb", "oauth_cb", "on_commit", "on_delivery", "logger"]
)
@pytest.mark.parametrize("parse", [read, written], ids=["source", "sink"])
def test_a_callback_is_refused_by_name(parse: Callable[[dict[str, str]], ClientSettings], name: str) -> None:
    with pytest.raises(OptionError, match=name):
        parse({name: "x"})


@pytest.mark.parametrize(
    "given",
    [
        {"batch.size": "-1"},
        {"linger.ms": "-5"},
        {"retry.backoff.ms": "x"},
        {"max.request.size": "-1"},
        {"batch.size": "0"},
        {"linger.ms": "1000000"},
        {"receive.buffer.bytes": "-1"},
    ],
    ids=str,
)
def test_a_value_that_librdkafka_does_not_take_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        open_producer(written(given), {})


@pytest.mark.parametrize(
    "given",
    [{"session.timeout.ms": "600000"}, {"heartbeat.interval.ms": "600000"}, {"fetch.max.wait.ms": "300000"}],
    ids=str,
)
def test_the_source_takes_what_its_group_would_need_and_never_joins(given: dict[str, str]) -> None:
    check_settings(read(given))


@pytest.mark.parametrize("module", [None, "OAuthBearerLoginModule required;"])
def test_an_authentication_by_tokens_that_nothing_gives_is_refused(module: str | None) -> None:
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    with pytest.raises(OptionError, match="The mechanism OAUTHBEARER needs tokens, and nothing provides them"):
        read(given | ({} if module is None else {"sasl.jaas.config": module}))


@pytest.mark.parametrize(
    "more",
    [
        {"sasl.oauthbearer.method": "OIDC", "sasl.oauthbearer.client.id": "c"},
        {"enable.sasl.oauthbearer.unsecure.jwt": "1"},
        {"security.protocol": "PLAINTEXT"},
    ],
    ids=str,
)
def test_a_log_in_by_tokens_that_come_from_somewhere_is_taken(more: dict[str, str]) -> None:
    assert refusal(read, {"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"} | more) is None


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms", "SASL.Mechanisms"])
@pytest.mark.parametrize(("mechanism", "uses_tokens"), [(" oauthbearer ", True), ("PLAIN", False)])
def test_tokens_are_noticed_by_either_name_of_the_mechanism(name: str, mechanism: str, *, uses_tokens: bool) -> None:
    given = {"security.protocol": "SASL_SSL", name: mechanism, "enable.sasl.oauthbearer.unsecure.jwt": "true"}
    assert read(given).uses_tokens is uses_tokens
    assert not read({}).uses_tokens


def test_options_that_do_nothing_here_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    raw = {
        "kafka.bootstrap.servers": "broker:9092",
        "subscribe": "t",
        "MAXOFFSETSPERTRIGGER": "5",
        "minOffsetsPerTrigger": "5",
        "maxTriggerDelay": "1s",
        "kafka.group.id": "mine",
        "groupIdPrefix": "other",
    }
    said: dict[bool | None, list[str]] = {}
    for streaming in (True, False, False):
        caplog.clear()
        parse_read_options(raw, {}, streaming=streaming)
        said.setdefault(streaming, []).extend(record.getMessage() for record in caplog.records)
    ignored = "[KAFKA_OPTION_IGNORED] %s option ignored in batch queries."
    assert said == {
        True: ["[KAFKA_OPTION_IGNORED] Option groupIdPrefix will be ignored as option kafka.group.id has been set."],
        False: [ignored % name for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")],
    }


def test_two_names_of_one_setting_may_have_one_value_only() -> None:
    raw = {"kafka.bootstrap.servers": "b:1", "topic": "t", "kafka.acks": "all"}
    with pytest.raises(OptionError, match=r"kafka\.acks and kafka\.request\.required\.acks conflict"):
        parse_write_options(raw | {"kafka.request.required.acks": "1"}, {}, streaming=True)
    assert parse_write_options(raw | {"kafka.request.required.acks": "all"}, {}, streaming=True)


def test_a_group_to_commit_to_is_named_as_ignored_in_a_batch_read(caplog: pytest.LogCaptureFixture) -> None:
    raw = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "commitOffsetsToGroup": "g"}
    ignored = "commitOffsetsToGroup option ignored in batch queries"
    parse_read_options(raw | {"startingOffsets": "group"}, {}, streaming=False)
    assert ignored not in caplog.text
    parse_read_options(raw, {}, streaming=False)
    assert ignored in caplog.text


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (
            {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"},
            "certificate.verification=false",
        ),
        ({"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": ""}, "identification.algorithm=none"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "bootstrap.servers": "b:1,127.0.0.1:1"},
            "SASL_PLAINTEXT",
        ),
    ],
)
def test_credentials_that_nothing_protects_are_warned_of(
    given: dict[str, str], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        read({"sasl.username": "u", "sasl.password": "canary"} | given)
    [warning] = [each for each in caplog.messages if "KAFKA_UNPROTECTED" in each]
    assert named in warning
    assert "canary" not in warning


@pytest.mark.parametrize(
    "given",
    [
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "bootstrap.servers": "[::1]:1,localhost:1"},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "bootstrap.servers": "b:1"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "bootstrap.servers": "b:1"},
        {"security.protocol": "PLAINTEXT", "enable.ssl.certificate.verification": "false"},
    ],
)
def test_credentials_on_this_machine_or_protected_ones_are_not_warned_of(
    given: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        read({"sasl.username": "u", "sasl.password": "p"} | given)
    assert "KAFKA_UNPROTECTED" not in caplog.text


def test_a_token_endpoint_of_another_machine_is_not_reached_by_plain_http() -> None:
    token = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc"}
    token |= {"sasl.oauthbearer.client.id": "i", "sasl.oauthbearer.client.secret": "canary"}
    with pytest.raises(OptionError, match=r"^\[OPTION_CONFLICT\].*plain http to idp") as caught:
        read({**token, "sasl.oauthbearer.token.endpoint.url": "http://idp/token"})
    assert "canary" not in str(caught.value)
    for url in ("https://idp/token", "http://127.0.0.1:8/token"):
        assert read({**token, "sasl.oauthbearer.token.endpoint.url": url}).get("sasl.mechanism")
