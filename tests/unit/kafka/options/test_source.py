"""Options of ``kafka_py``: parsing, precedence, refusals and their texts, and settings of the client."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from connectors.core.errors import OptionError
from connectors.core.offsets import SENTINEL
from connectors.kafka.offsets import (
    Anywhere,
    Offsets,
    Specific,
    Timestamp,
    Timestamps,
    TopicPartition,
    read_offset,
    resolved_start,
)
from connectors.kafka.options.source import (
    Assign,
    KafkaReadOptions,
    Strategy,
    Subscribe,
    SubscribePattern,
    parse_read_options,
)
from connectors.kafka.source.micro_batch import KafkaStream

BASE = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "orders"}


def parse(streaming: bool | None = True, **options: str | None) -> KafkaReadOptions:
    raw: dict[str, str] = dict(BASE)
    for key, value in options.items():
        name = key.replace("__", ".")
        raw.pop(name, None)
        if value is not None:
            raw[name] = value
    return parse_read_options(raw, {"PASSWORD": "hidden"}, streaming=streaming)


def refused(streaming: bool | None = True, **options: str | None) -> str:
    with pytest.raises(OptionError) as caught:
        parse(streaming, **options)
    return str(caught.value)


ONE_OF = "One of the following options must be specified for Kafka source: subscribe, subscribepattern, assign. See the docs for more details"  # noqa: E501
ONLY_ONE = "Only one of the following options can be specified for Kafka source: subscribe, subscribepattern, assign. See the docs for more details"  # noqa: E501
MALFORMED = 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got '

BOTH = [
    ({"subscribe": None}, ONE_OF),
    ({"assign": '{"a":[0]}'}, ONLY_ONE),
    ({"subscribePattern": "a"}, ONLY_ONE),
    ({"subscribe": " , "}, "No topics to subscribe to as specified value for option 'subscribe' is ','"),
    ({"subscribe": None, "subscribePattern": " "}, "Pattern to subscribe is empty as specified value for option"),
    ({"subscribe": None, "subscribePattern": "("}, "is not a regular expression"),
    ({"subscribe": None, "assign": "a,b"}, "No topicpartitions to assign as specified value for option 'assign' is"),
    ({"subscribe": None, "assign": '{"a":0}'}, 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got {"a":0}'),
    ({"kafka__bootstrap__servers": None}, "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka"),
    ({"startingOffsets": '{"a":'}, MALFORMED + '{"a":'),
    ({"startingOffsets": '{"a":{"0":-3}}'}, MALFORMED),
    ({"startingOffsets": '{"a":' * 100_000}, MALFORMED),
    ({"endingOffsets": '{"a":' * 100_000}, MALFORMED),
    ({"startingOffsetsByTimestamp": '{"a":' * 100_000}, "Expected e.g."),
    ({"subscribe": None, "assign": '{"a":' + "[" * 100_000}, "Expected e.g."),
    (
        {"kafka__metadata__broker__list": "other:9092"},
        "kafka.metadata.broker.list conflict",
    ),
    ({"kafka__fetch__max__wait__ms": "1", "kafka__fetch__wait__max__ms": "2"}, "kafka.fetch.max.wait.ms conflict"),
    ({"tokenProvider": "shop:Tokens"}, "tokenProvider and kafka.sasl.mechanism conflict"),
    ({"startingOffsets": '{"a":"newest"}'}, MALFORMED),
    ({"startingOffsetsByTimestamp": '{"a":{"0":"x"}}'}, "Expected e.g."),
    ({"startingTimestamp": "soon"}, "Expected a single long value, got soon"),
    ({"startingOffsetsByTimestampStrategy": "guess"}, "startingOffsetsByTimestampStrategy"),
    ({"failOnDataLoss": "maybe"}, "failOnDataLoss"),
    ({"minPartitions": "0"}, "minPartitions must be positive"),
    ({"minPartitions": "-1"}, "minPartitions must be positive"),
    ({"minPartitions": "a"}, "it is not a whole number"),
    ({"minPartitions": "1.0"}, "it is not a whole number"),
    ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition must be positive"),
    (
        {"kafka__auto__offset__reset": "latest"},
        "Kafka option 'auto.offset.reset' is not supported. Instead set the source option 'startingoffsets'",
    ),
    ({"kafka__key__deserializer": "x"}, '"key.deserializer"'),
    ({"kafka__value__deserializer": "x"}, '"value.deserializer"'),
    ({"kafka__enable__auto__commit": "true"}, "Kafka option 'enable.auto.commit' is not supported"),
    ({"kafka__interceptor__classes": "x"}, '"interceptor.classes"'),
    ({"kafka__isolation__level": "serializable"}, "isolation.level"),
    ({"kafka__plugin__library__paths": "x.so"}, "kafka.plugin.library.paths is not supported"),
    *(
        ({name: text}, "Expected e.g. {")
        for name, text in (
            ("startingOffsets", r'{"orders\u0000x":{"0":1}}'),
            ("startingOffsetsByTimestamp", r'{"orders\u0000x":{"0":1}}'),
        )
    ),
    ({"subscribeTopics": "a"}, "Did you mean subscribe?"),
    ({"startingOffsets": "group"}, "Give commitOffsetsToGroup, or kafka.group.id"),
]


@pytest.mark.parametrize(("options", "text"), BOTH)
@pytest.mark.parametrize("streaming", [True, False, None])
def test_26_bad_options_of_the_source_are_refused(options: dict[str, str], text: str, streaming: bool | None) -> None:
    assert text in refused(streaming, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"endingOffsetsByTimestamp": '{"a":{"0":1}}'}, "ending timestamp not valid in streaming queries"),
        (
            {"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"},
            "The value of minOffsetPerTrigger(20) is higher than the maxOffsetsPerTrigger(15)",
        ),
    ],
)
def test_26_what_a_stream_cannot_have_is_refused(options: dict[str, str], text: str) -> None:
    assert text in refused(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingOffsets": "Latest"}, "starting offset can't be latest for batch queries on Kafka"),
        (
            {
                "startingOffsetsByTimestamp": '{"t":{"0":9,"1":9}}',
                "endingOffsetsByTimestamp": '{"t":{"0":9,"1":5}}',
            },
            "The specified start timestamp 9 is greater than the end timestamp 5 for topic t partition 1",
        ),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "startingOffsets for t-0 can't be latest for batch queries on Kafka"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries on Kafka"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "ending offset for t-0 can't be earliest for batch queries on Kafka"),
        ({"startingOffsets": "latest", "subscribe": None}, "starting offset can't be latest"),
    ],
)
def test_40_latest_as_start_and_earliest_as_end_are_refused_in_batch(options: dict[str, str], text: str) -> None:
    assert text in refused(streaming=False, **options)


def test_ending_timestamp_of_a_stream_is_ignored_as_by_spark() -> None:
    assert parse(endingTimestamp="5").end == Timestamp(5)


def test_defaults_are_those_of_spark() -> None:
    options = parse()
    assert options.start == Anywhere.LATEST
    assert parse(streaming=False).start == Anywhere.EARLIEST
    assert options.fail_on_data_loss
    assert options.max_trigger_delay == 900
    assert options.poll_timeout_ms is None
    assert (options.offset_retries, options.offset_retry_ms) == (None, 1000)
    assert options.poll_timeout is None
    assert not options.include_headers
    assert options.group == "spark-kafka-source-executor"
    assert parse(streaming=False).group == "spark-kafka-relation-executor"
    assert options.client.get("isolation.level") == "read_uncommitted"


@pytest.mark.parametrize(("text", "seconds"), [("5s", 5), ("1500", 1.5), ("2 h", 7200), ("10min", 600)])
def test_max_trigger_delay_is_a_time_of_spark(text: str, seconds: float) -> None:
    assert parse(maxTriggerDelay=text).max_trigger_delay == seconds


@pytest.mark.parametrize("text", ["1_000", str(1 << 63), str(-(1 << 63) - 1), "9" * 40, "", "1.5"])
@pytest.mark.parametrize("option", ["startingTimestamp", "endingTimestamp"])
def test_26_a_time_that_is_no_long_is_refused(option: str, text: str) -> None:
    assert f"Expected a single long value, got {text}" in refused(streaming=False, **{option: text})


@pytest.mark.parametrize("text", ["-1", "-2", "-3", "-9223372036854775807"])
@pytest.mark.parametrize("option", ["startingTimestamp", "endingTimestamp"])
def test_26_a_time_before_1970_is_refused_as_kafka_takes_it_for_a_word(option: str, text: str) -> None:
    assert f"Expected a time of at least 0, in milliseconds since 1970, got {text}" in refused(
        streaming=False, **{option: text}
    )


@pytest.mark.parametrize("number", ["1_0", "00", " 1", "+1", "-0", "", "\u0661", "4294967296"])
@pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_26_a_partition_is_written_in_one_way(option: str, number: str) -> None:
    assert "Expected e.g." in refused(streaming=False, **{option: json.dumps({"t": {"0": 5, number: 7}})})


def test_39_timestamp_wins_over_timestamps_over_offsets_on_each_side() -> None:
    start = {
        "startingTimestamp": "7",
        "startingOffsetsByTimestamp": '{"a":{"0":5}}',
        "startingOffsets": '{"a":{"0":3}}',
    }
    end = {"endingTimestamp": "17", "endingOffsetsByTimestamp": '{"a":{"0":15}}', "endingOffsets": '{"a":{"0":13}}'}
    where = TopicPartition("a", 0)
    for order in (1, -1):  # whichever Spark hands over first
        both = dict([*start.items(), *end.items()][::order])
        options = parse(streaming=False, **both)
        assert (options.start, options.end) == (Timestamp(7), Timestamp(17))
        options = parse(streaming=False, **(both | {"startingTimestamp": None, "endingTimestamp": None}))
        assert (options.start, options.end) == (Timestamps({where: 5}), Timestamps({where: 15}))
    options = parse(streaming=False, startingOffsets=start["startingOffsets"], endingOffsets=end["endingOffsets"])
    assert (options.start, options.end) == (Specific({where: 3}), Specific({where: 13}))


def test_39_an_option_of_one_side_does_not_move_the_other() -> None:
    options = parse(streaming=False, startingTimestamp="7", endingOffsets='{"a":{"0":13}}')
    assert (options.start, options.end) == (Timestamp(7), Specific({TopicPartition("a", 0): 13}))
    options = parse(streaming=False, startingOffsets='{"a":{"0":3}}', endingTimestamp="17")
    assert (options.start, options.end) == (Specific({TopicPartition("a", 0): 3}), Timestamp(17))


def test_words_for_offsets_count_in_any_case() -> None:
    assert parse(startingOffsets="Earliest").start == Anywhere.EARLIEST
    assert parse(startingOffsets="LATEST").start == Anywhere.LATEST
    assert parse(streaming=False, endingOffsets="Latest").end == Anywhere.LATEST


class OldTopic:
    """What Kafka says of a partition whose 23 records are all older than any time that is asked for."""

    def ask(self, question: Callable[[OldTopic], Any]) -> Any:
        return question(self)

    def partitions(self, _strategy: Strategy) -> frozenset[TopicPartition]:
        return frozenset({TopicPartition("a", 0)})

    def at_time(self, times: Mapping[TopicPartition, int]) -> Offsets:
        return dict.fromkeys(times, -1)

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return dict.fromkeys(partitions, 23)

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return dict.fromkeys(partitions, 0)

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("strategy", [None, "error", "Latest"])
@pytest.mark.parametrize(
    "start", [{"startingTimestamp": "5000"}, {"startingOffsetsByTimestamp": '{"a":{"0":5000}}'}], ids=str
)
def test_05_a_starting_time_of_a_stream_that_no_record_has_reached_is_an_error_or_the_end(
    start: dict[str, str], strategy: str | None
) -> None:
    options = parse(subscribe="a", startingOffsetsByTimestampStrategy=strategy, **start)
    stream = KafkaStream(options, lookup=OldTopic())  # type: ignore[arg-type]
    if strategy == "Latest":
        end = stream.latest_offset(SENTINEL, everything=True)
        assert resolved_start(end) == read_offset(end) == {TopicPartition("a", 0): 23}
    else:
        said = r"KAFKA_NO_OFFSET_FOR_TIMESTAMP.*from request of topic-partition a-0 and timestamp 5000"
        with pytest.raises(OptionError, match=said):
            stream.latest_offset(SENTINEL, everything=True)
    stream.stop()


def test_specific_offsets_and_words_for_topics() -> None:
    start = parse(startingOffsets='{"a":{"0":23,"1":-2},"b":"latest","c":"Earliest"}').start
    assert start == Specific({TopicPartition("a", 0): 23, TopicPartition("a", 1): -2}, {"b": -1, "c": -2})


def test_start_of_a_group() -> None:
    assert parse(startingOffsets="group", commitOffsetsToGroup="shop").start == Anywhere.GROUP
    assert parse(startingOffsets="group", kafka__group__id="shop").start == Anywhere.GROUP


def test_strategies() -> None:
    assert parse(subscribe=" a , b,,a").strategy == Subscribe(("a", "b"))
    pattern = parse(subscribe=None, subscribePattern=" ord.* ").strategy
    assert pattern == SubscribePattern("ord.*")
    assert isinstance(pattern, SubscribePattern)
    assert pattern.matches("orders")
    assert pattern.matches("my-orders")
    assert not pattern.matches("offers")
    assigned = parse(subscribe=None, assign='{"a":[1,0]}').strategy
    assert assigned == Assign(frozenset({TopicPartition("a", 0), TopicPartition("a", 1)}))


def test_33_names_count_in_any_case() -> None:
    raw = {"KAFKA.BOOTSTRAP.SERVERS": "b:1", "SubScribe": "a", "MINPARTITIONS": "4", "Kafka.Fetch.Min.Bytes": "7"}
    options = parse_read_options(raw, {}, streaming=True)
    assert options.min_partitions == 4
    assert options.client.get("fetch.min.bytes") == "7"


# Settings of the client


def client(**options: str) -> dict[str, str]:
    return parse(**options).client.revealed()


def test_the_rack_is_that_of_the_host_that_opens_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZONE", raising=False)
    sent = pickle.dumps(parse(kafka__client__rack=" env:ZONE ").for_tasks())
    monkeypatch.setenv("ZONE", " eu-west-1a\n")
    received = pickle.loads(sent).client
    assert (received.rack_variable, received.revealed()["client.rack"]) == ("ZONE", "eu-west-1a")
    monkeypatch.setenv("ZONE", "eu-west-1b")
    assert received.revealed()["client.rack"] == "eu-west-1b"
    monkeypatch.delenv("ZONE")
    assert received.revealed()["client.rack"] == "", "the client's default: no rack"


def test_a_rack_that_is_given_itself_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("eu-west-1a", "another")
    for rack in ("eu-west-1a", "", "ENVIRON", "a:b"):
        settings = parse(kafka__client__rack=rack).client
        assert (settings.rack_variable, settings.revealed()["client.rack"]) == (None, rack)
    assert "client.rack" not in client()


def test_queries_with_racks_of_different_variables_do_not_share_consumers() -> None:
    one, other = (parse(kafka__client__rack=f"env:{name}").client for name in ("ZONE", "RACK"))
    assert one != other


@pytest.mark.parametrize("rack", ["env:", "env:A B", "env:A=b", "${env:ZONE}", "rack-${ZONE}"])
def test_a_rack_that_no_host_can_look_up_is_refused(rack: str) -> None:
    text = refused(kafka__client__rack=rack)
    assert "OPTION_ILLEGAL" in text
    assert "kafka.client.rack" in text
    assert "env:NAME" in text


def test_settings_of_the_jvm_client_are_translated() -> None:
    given = client(
        kafka__receive__buffer__bytes="1000",
        kafka__fetch__max__wait__ms="50",
        kafka__max__partition__fetch__bytes="99",
        kafka__ssl__endpoint__identification__algorithm="",
    )
    assert given["socket.receive.buffer.bytes"] == "1000"
    assert given["fetch.wait.max.ms"] == "50"
    assert given["fetch.message.max.bytes"] == "99"
    assert given["ssl.endpoint.identification.algorithm"] == "none"


JAAS = 'org.apache.kafka.common.security.{} required username="shop" password="a \\"b\\" c;d";'


@pytest.mark.parametrize("module", ["plain.PlainLoginModule", "scram.ScramLoginModule"])
def test_a_log_in_of_the_jvm_client_is_understood(module: str) -> None:
    given = client(kafka__sasl__jaas__config=JAAS.format(module), kafka__sasl__mechanism="PLAIN")
    assert given["sasl.username"] == "shop"
    assert given["sasl.password"] == 'a "b" c;d'
    assert "sasl.jaas.config" not in given


def test_extensions_of_a_log_in_by_oidc_are_passed_on() -> None:
    text = (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId='me' clientSecret='env' "
        "extension_logicalCluster='lkc-1' extension_identityPoolId='pool-1';"
    )
    given = client(kafka__sasl__jaas__config=text)
    assert given["sasl.oauthbearer.extensions"] == "logicalCluster=lkc-1,identityPoolId=pool-1"


def test_a_log_in_by_oidc_is_understood() -> None:
    text = 'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId="me" '
    given = client(
        kafka__sasl__jaas__config=text + "clientSecret='env' scope=all;",
        kafka__sasl__login__callback__handler__class="OAuthBearerLoginCallbackHandler",
        kafka__sasl__oauthbearer__token__endpoint__url="https://login",
    )
    assert given["sasl.oauthbearer.method"] == "oidc"
    assert given["sasl.oauthbearer.client.id"] == "me"
    assert given["sasl.oauthbearer.client.secret"] == "env"
    assert given["sasl.oauthbearer.scope"] == "all"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"kafka__sasl__jaas__config": "com.sun.security.auth.module.Krb5LoginModule required x=1;"},
            "has no Kerberos",
        ),
        ({"kafka__sasl__jaas__config": "software.amazon.msk.auth.iam.IAMLoginModule required;"}, "tokenProvider"),
        ({"kafka__sasl__jaas__config": "password=hunter2"}, "cannot be read"),
        ({"kafka__sasl__login__callback__handler__class": "my.Handler"}, "tokenProvider=module:Class"),
        ({"kafka__ssl__truststore__location": "/a.jks"}, "keytool -list -rfc"),
        ({"kafka__ssl__keystore__location": "/a.jks"}, "kafka.ssl.keystore.type=PKCS12"),
        ({"kafka__ssl__protocol": "TLSv1.3"}, "spark-kafka-settings.md"),
        ({"tokenProvider": "no_class"}, "module:Class"),
    ],
)
def test_what_has_no_meaning_for_librdkafka_is_refused_with_what_has(options: dict[str, str], text: str) -> None:
    message = refused(**options)
    assert text in message
    assert "hunter2" not in message


def test_stores_in_pem_become_files_of_openssl() -> None:
    given = client(
        kafka__ssl__truststore__type="PEM",
        kafka__ssl__truststore__location="/ca.pem",
        kafka__ssl__keystore__type="pem",
        kafka__ssl__keystore__location="/me.pem",
    )
    assert given["ssl.ca.location"] == "/ca.pem"
    assert given["ssl.certificate.location"] == given["ssl.key.location"] == "/me.pem"


def test_secrets_are_read_from_the_environment_and_never_shown() -> None:
    options = parse(kafka__sasl__password="env:PASSWORD", kafka__sasl__username="me")
    assert options.client.revealed()["sasl.password"] == "hidden"
    assert "hidden" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


def test_what_tasks_get_has_no_positions_and_shows_no_secret() -> None:
    positions = "{" + ",".join(f'"topic-{number}":{{"0":23}}' for number in range(1000)) + "}"
    options = parse(startingOffsets=positions, kafka__group__id="shop", kafka__sasl__password="env:PASSWORD")
    sent = pickle.dumps(options.for_tasks())
    assert len(sent) < 5000
    received = pickle.loads(sent)
    assert (received.client, received.group) == (options.client, "shop")
    assert "hidden" not in repr(received)


@pytest.mark.parametrize("pattern", ["[a-z&&[^t]]", "[a[bc]]", "[[:alpha:]]", "[^a&&b]", "x|[]a[]", "[^]&&[a]]"])
def test_a_pattern_that_java_and_python_read_otherwise_is_refused(pattern: str) -> None:
    with pytest.raises(OptionError, match=r"OPTION_ILLEGAL.*Java") as caught:
        parse(subscribe=None, subscribePattern=pattern)
    assert "look-ahead" in str(caught.value)


@pytest.mark.parametrize(
    "pattern", [r"[a\[b]", r"\[ab]", "[]a]&&", "[^]a]", "(?!t)[a-z]", "a&&b", "[a&b]", r"[\]&]&&", "ord[.]x++"]
)
def test_a_pattern_that_both_read_alike_is_taken(pattern: str) -> None:
    assert parse(subscribe=None, subscribePattern=pattern).strategy == SubscribePattern(pattern)
