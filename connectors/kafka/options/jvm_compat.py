"""Settings of the JVM client that librdkafka names or handles otherwise, as tables; names are without ``kafka.``.

Ranges of librdkafka are those of its CONFIGURATION.md, of the JVM client those of ``ProducerConfig`` and
``ConsumerConfig``.
"""

from __future__ import annotations

from typing import Final

_KEYS_AS_BYTES: Final = (
    "is not supported as keys are deserialized as byte arrays with ByteArrayDeserializer. Use DataFrame operations to "
    "explicitly deserialize the keys"
)
_VALUES_AS_BYTES: Final = (
    "is not supported as values are deserialized as byte arrays with ByteArrayDeserializer. Use DataFrame operations "
    "to explicitly deserialize the values"
)
NOT_FOR_SOURCES: Final = {
    "auto.offset.reset": (
        "is not supported. Instead set the source option 'startingoffsets' to 'earliest' or 'latest' to specify where "
        "to start. Structured Streaming manages which offsets are consumed internally, rather than relying on the "
        "kafkaConsumer to do it"
    ),
    "key.deserializer": _KEYS_AS_BYTES,
    "value.deserializer": _VALUES_AS_BYTES,
    "enable.auto.commit": "is not supported",
    "interceptor.classes": "is not supported",
}
"""Settings that a source refuses, with the texts of Spark's own source."""
NOT_FOR_SINKS: Final = {
    "key.serializer": "is not supported as keys are serialized with ByteArraySerializer",
    "value.serializer": "is not supported as values are serialized with ByteArraySerializer",
    "interceptor.classes": "is not supported",
}
"""Settings that a sink refuses, with the texts of Spark's own sink."""

IGNORED_BY_SOURCES: Final = dict.fromkeys(
    (
        "buffer.memory",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "key.serializer",
        "max.request.size",
        "partitioner.class",
        "partitioner.ignore.keys",
        "value.serializer",
    ),
    "it is one of producers, and a source has none",
)
IGNORED_BY_SINKS: Final = dict.fromkeys(
    ("key.deserializer", "value.deserializer"), "it is one of consumers, and a sink has none"
)
NO_METRICS: Final = "librdkafka has no metrics of the JVM"
IGNORED: Final = {
    **dict.fromkeys(("auto.include.jmx.reporter", "metric.reporters"), NO_METRICS),
    **dict.fromkeys(
        ("group.instance.id", "max.poll.interval.ms", "partition.assignment.strategy"), "no consumer group is joined"
    ),
    **dict.fromkeys(
        ("partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms"),
        "kafka.sticky.partitioning.linger.ms says how rows without a key are spread",
    ),
    **dict.fromkeys(
        ("sasl.kerberos.ticket.renew.jitter", "sasl.kerberos.ticket.renew.window.factor"),
        "kafka.sasl.kerberos.min.time.before.relogin says when a ticket is renewed",
    ),
    **dict.fromkeys(
        (
            "sasl.login.connect.timeout.ms",
            "sasl.login.read.timeout.ms",
            "sasl.login.retry.backoff.max.ms",
            "sasl.login.retry.backoff.ms",
        ),
        "librdkafka has times of its own for asking for a token",
    ),
    **dict.fromkeys(
        (
            "sasl.login.refresh.buffer.seconds",
            "sasl.login.refresh.min.period.seconds",
            "sasl.login.refresh.window.factor",
            "sasl.login.refresh.window.jitter",
        ),
        "a token is renewed after 80 percent of its lifetime",
    ),
    **dict.fromkeys(
        (
            "sasl.oauthbearer.clock.skew.seconds",
            "sasl.oauthbearer.expected.audience",
            "sasl.oauthbearer.expected.issuer",
            "sasl.oauthbearer.jwks.endpoint.refresh.ms",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
            "sasl.oauthbearer.jwks.endpoint.url",
            "sasl.oauthbearer.jwt.validator.class",
            "sasl.oauthbearer.scope.claim.name",
        ),
        "brokers check tokens, clients do not",
    ),
    "default.api.timeout.ms": (
        "fetchOffset.numRetries, fetchOffset.retryIntervalMs and kafka.socket.timeout.ms limit how long a query waits "
        "for a response"
    ),
    "max.block.ms": "kafka.delivery.timeout.ms says how long a record may take",
    "max.poll.records": "maxOffsetsPerTrigger and maxRecordsPerPartition say how much is read at a time",
    "metadata.max.idle.ms": "kafka.topic.metadata.refresh.interval.ms says how often topics are looked up",
    "socket.connection.setup.timeout.max.ms": "kafka.socket.connection.setup.timeout.ms is the only such time",
    "ssl.secure.random.implementation": "OpenSSL is used",
}
"""Settings that change no row and protect nothing, and why they have no meaning here."""

_OPENSSL: Final = "Leave it out: OpenSSL is used."
_TLS_VERSION: Final = "Leave it out: the newest version of TLS that both sides support is used."
LOADS_CODE: Final = "Leave it out: it would load code of its own into every worker."
_MOCK: Final = "Leave it out: each client would have a cluster of its own, and what is written would be gone."
_CALLBACK: Final = "Leave it out: it is a function of Python, and an option is a text."
REFUSED: Final = {
    **dict.fromkeys(("error_cb", "stats_cb", "throttle_cb", "on_commit", "on_delivery", "logger"), _CALLBACK),
    **dict.fromkeys(("oauth_cb", "sasl.client.callback.handler.class", "sasl.login.class"), "Use tokenProvider."),
    **dict.fromkeys(("plugin.library.paths", "ssl.engine.id", "ssl.engine.location"), LOADS_CODE),
    **dict.fromkeys(("test.mock.broker.rtt", "test.mock.num.brokers"), _MOCK),
    **dict.fromkeys(
        ("ssl.provider", "security.providers", "ssl.keymanager.algorithm", "ssl.trustmanager.algorithm"), _OPENSSL
    ),
    **dict.fromkeys(("ssl.protocol", "ssl.enabled.protocols"), _TLS_VERSION),
    "default.topic.config": "Leave it out, and give the settings in it by themselves.",
    "sasl.kerberos.kinit.cmd": "Leave it out: it would run a command in every worker.",
    "ssl.truststore.password": "Use a trust store in PEM, which has none: kafka.ssl.truststore.type=PEM.",
    "ssl.engine.factory.class": "Use kafka.ssl.ca.location, kafka.ssl.certificate.location and kafka.ssl.key.location.",
    "exclude.internal.topics": "Leave it out: subscribePattern reads no internal topics; subscribe can name them.",
    "transaction.two.phase.commit.enable": "Leave it out: deliveryGuarantee=exactly_once ends its transactions itself.",
    "sasl.oauthbearer.jwt.retriever.class": (
        "Use kafka.sasl.oauthbearer.method=oidc with kafka.sasl.oauthbearer.grant.type, or tokenProvider."
    ),
    "sasl.oauthbearer.header.urlencode": (
        "Leave it out, and write client id and secret URL-encoded if the authorization server wants that."
    ),
}
"""Settings that source and sink refuse, and what to do instead."""

RENAMED: Final = {
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "sasl.oauthbearer.assertion.template.file": "sasl.oauthbearer.assertion.jwt.template.file",
}
OTHER_NAMES: Final = RENAMED | {
    "metadata.broker.list": "bootstrap.servers",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "sasl.mechanisms": "sasl.mechanism",
    "compression.codec": "compression.type",
    "message.send.max.retries": "retries",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
    "delivery.timeout.ms": "message.timeout.ms",
}
"""Of two names for one setting librdkafka takes the last, without a word."""
LINGER_SETTINGS: Final = ("linger.ms", "queue.buffering.max.ms")
TIMEOUT_SETTINGS: Final = ("delivery.timeout.ms", "message.timeout.ms")

BUFFERS: Final = frozenset({"receive.buffer.bytes", "send.buffer.bytes"})
"""The system's own size is -1 to the JVM client, and 0 to librdkafka."""
_MOST: Final = (1 << 31) - 1
RANGES: Final[dict[str, tuple[int, int, int]]] = {
    "batch.size": (0, 1, _MOST),
    "connections.max.idle.ms": (-(1 << 63), 0, _MOST),
    "fetch.max.bytes": (0, 1_000_000, 2_147_483_135),
    "fetch.message.max.bytes": (0, 1, 1_000_000_000),
    "fetch.min.bytes": (0, 1, 100_000_000),
    "fetch.wait.max.ms": (0, 0, 300_000),
    "linger.ms": (0, 0, 900_000),
    "message.max.bytes": (0, 1000, 1_000_000_000),
    "metadata.max.age.ms": (0, 1, 86_400_000),
    "reconnect.backoff.max.ms": (0, 0, 3_600_000),
    "reconnect.backoff.ms": (0, 0, 3_600_000),
    "request.timeout.ms": (0, 1, 900_000),
    "retry.backoff.max.ms": (0, 1, 300_000),
    "retry.backoff.ms": (0, 1, 300_000),
}
"""By the name in librdkafka: the least that the JVM client takes, and the least and the most that librdkafka does.

That of ``fetch.max.bytes`` is the default of its ``message.max.bytes``, which it may not be below.
"""
COUNTS: Final = frozenset(
    {"max.in.flight", "max.in.flight.requests.per.connection", "message.send.max.retries", "retries"}
)
UNITS: Final = (".bytes", ".kbytes", ".messages", ".ms", ".size")
"""How the names of whole numbers end; of other values librdkafka reads the digits at the beginning, if any."""

PARTITIONERS: Final = {
    "internals.DefaultPartitioner": "murmur2_random",
    "UniformStickyPartitioner": "random",
    "RoundRobinPartitioner": "random",
}
PRODUCER_DEFAULTS: Final = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "5",
    "message.max.bytes": "1048576",
    "partitioner": "murmur2_random",
    "queue.buffering.max.messages": "500000",
    "queue.buffering.max.kbytes": "131072",
    # Rows without a key go to one partition for a while, then to another. librdkafka's default is two times linger.ms,
    # 10 ms, in which a task hands over some megabytes. Measured with 1 ms: rows are spread over all partitions, at no
    # cost; with 0, another partition for each row, twice the processor time.
    "sticky.partitioning.linger.ms": "1",
}
"""What the JVM's producer does by itself, and librdkafka does not: keys land where the JVM client puts them."""
