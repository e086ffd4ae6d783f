"""Settings of the JVM client that librdkafka names or handles otherwise; names are without ``kafka.``.

Ranges of librdkafka are those of its CONFIGURATION.md, of the JVM client those of ``ProducerConfig`` and
``ConsumerConfig``. ``sasl.jaas.config`` is read as Kafka's ``JaasConfig`` reads it with Java's ``StreamTokenizer``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from connectors.core.options.kinds import Secret
from connectors.kafka.offsets import illegal

_KEYS_AS_BYTES: Final = (
    "is not supported as keys are deserialized as byte arrays with ByteArrayDeserializer. Use DataFrame operations to "
    "explicitly deserialize the keys"
)
_VALUES_AS_BYTES: Final = (
    "is not supported as values are deserialized as byte arrays with ByteArrayDeserializer. Use DataFrame operations "
    "to explicitly deserialize the values"
)
NOT_FOR: Final = {
    "consumer": {
        "auto.offset.reset": (
            "is not supported. Instead set the source option 'startingoffsets' to 'earliest' or 'latest' to specify "
            "where to start. Structured Streaming manages which offsets are consumed internally, rather than relying "
            "on the kafkaConsumer to do it"
        ),
        "key.deserializer": _KEYS_AS_BYTES,
        "value.deserializer": _VALUES_AS_BYTES,
        "enable.auto.commit": "is not supported",
        "interceptor.classes": "is not supported",
    },
    "producer": {
        "key.serializer": "is not supported as keys are serialized with ByteArraySerializer",
        "value.serializer": "is not supported as values are serialized with ByteArraySerializer",
        "interceptor.classes": "is not supported",
    },
}
"""Settings that a source or a sink refuses, with the texts of Spark's own."""
_OF_PRODUCERS: Final = (
    "buffer.memory",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
    "key.serializer",
    "max.request.size",
    "partitioner.class",
    "partitioner.ignore.keys",
    "value.serializer",
)
_OF_CONSUMERS: Final = ("key.deserializer", "value.deserializer")
IGNORED_BY: Final = {
    "consumer": dict.fromkeys(_OF_PRODUCERS, "it is one of producers, and a source has none"),
    "producer": dict.fromkeys(_OF_CONSUMERS, "it is one of consumers, and a sink has none"),
}
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
        "retryTimeout, fetchOffset.numRetries and kafka.socket.timeout.ms limit how long a query waits for a response"
    ),
    "max.block.ms": "retryTimeout, or kafka.delivery.timeout.ms, says how long a record may take",
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

# --- sasl.jaas.config, and what goes with it -----------------------------------------------------------------------
# What Java drops without a word, or cuts, is refused: an open quote, and a comment right after a bare value, as in
# scope=https://host. The text may hold a password, so no error shows any of it but the name of the login module.

NO_KERBEROS: Final = "Kerberos is not in the wheel of confluent-kafka; use PLAIN, SCRAM or OAUTHBEARER."
UNSECURED: Final = "enable.sasl.oauthbearer.unsecure.jwt"
_SHORT: Final = 200
_SECURITY: Final = "org.apache.kafka.common.security"
_PLAIN: Final = f"{_SECURITY}.plain.PlainLoginModule"
_SCRAM: Final = f"{_SECURITY}.scram.ScramLoginModule"
_BEARER: Final = f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule"
_MSK: Final = "software.amazon.msk.auth.iam"
_OIDC_HANDLERS: Final = (
    f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
    f"{_SECURITY}.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
_EXTENSION: Final = "extension_"
_UNSECURED_CLAIM: Final = "unsecuredLoginStringClaim"

_TOKEN: Final = re.compile(
    r"""
      [\x00-\x20]+ | //[^\r\n]* | /\*.*?\*/               # white space and comments
    | (?P<mark>[;=])
    | "(?P<double>(?:[^"\\\r\n]|\\.)*)"
    | '(?P<single>(?:[^'\\\r\n]|\\.)*)'
    | (?P<bare>[^\x00-\x20\x81-\x9f;="'/]++)(?!/)         # all of it: a comment would cut a value such as a//b
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_CLASS_NAME: Final = re.compile(r"[\w.$]+")
_USER_IN_URL: Final = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?/*[^/?#]*@", re.IGNORECASE)

_Token = tuple[str, str]
"""A kind, ``mark`` or ``text``, and the text."""
_EQUALS: Final[_Token] = ("mark", "=")


class _UnreadableError(Exception):
    """The text has not the form of a JAAS configuration."""


def apply_jaas_config(text: str, plain: dict[str, str], secret: dict[str, Secret]) -> None:
    """Add the settings in ``sasl.jaas.config`` to those that may be shown and to the secrets; settings in these win."""
    module, values = _login_module(text)
    if _is_class(module, _SCRAM) and values.get("tokenauth", "").lower() == "true":
        raise illegal(
            "A delegation token, tokenauth=true of ScramLoginModule, is not supported",
            "Give the name and the password of a user: librdkafka has no delegation tokens.",
        )
    if _is_class(module, _PLAIN, _SCRAM):
        _apply_password(values, plain, secret)
    elif _is_class(module, _BEARER):
        _apply_token(values, plain, secret)
    elif _is_class(module, f"{_MSK}.IAMLoginModule"):
        raise illegal(
            "The login module IAMLoginModule is a class of the JVM",
            "Give kafka.sasl.mechanism=OAUTHBEARER and tokenProvider=module:Class with a class that signs MSK tokens.",
        )
    else:
        raise illegal(
            f"The login module {module[:_SHORT]} is not supported",
            NO_KERBEROS if module.endswith("Krb5LoginModule") else "Use PLAIN, SCRAM or OAUTHBEARER.",
        )


def apply_login_handler(plain: dict[str, str]) -> None:
    """Replace the login handler of OIDC, which is built into librdkafka; refuse others, of the JVM."""
    handler = plain.pop("sasl.login.callback.handler.class", None)
    if handler is None:
        return
    if not _is_class(handler, *_OIDC_HANDLERS):
        raise illegal(
            f"The login handler {handler[:_SHORT]} is a class of the JVM",
            "Give tokenProvider=module:Class with a class that signs MSK tokens, as the package "
            "aws-msk-iam-sasl-signer-python does."
            if f".{_MSK}." in f".{handler}"
            else "Give tokenProvider=module:Class with a class of Python.",
        )
    plain["sasl.oauthbearer.method"] = "oidc"


def check_token_endpoint(plain: Mapping[str, str]) -> None:
    """Refuse a user or a password in the URL that tokens come from: librdkafka logs it if authentication fails."""
    if _USER_IN_URL.match(plain.get("sasl.oauthbearer.token.endpoint.url", "")):
        raise illegal(
            "The option kafka.sasl.oauthbearer.token.endpoint.url holds a user or a password, and URLs are logged",
            "Give kafka.sasl.oauthbearer.client.id and kafka.sasl.oauthbearer.client.secret instead.",
        )


def _is_class(name: str, *classes: str) -> bool:
    """Return whether a class is one of these: by its last part, or its whole name, also inside of another package.

    Jars that bring Kafka along move it, as ``kafkashaded.org.apache.kafka`` on Databricks.
    """
    return any(name in {full, full.rpartition(".")[2]} or name.endswith(f".{full}") for full in classes)


def _login_module(text: str) -> tuple[str, dict[str, str]]:
    try:
        modules = [_module(tokens) for tokens in _module_tokens(text)]
    except _UnreadableError:
        modules = []
    if not modules:
        raise illegal(
            "The option kafka.sasl.jaas.config cannot be read",
            'Give MODULE required NAME="VALUE" ...; and write \\" and \\\\ for a quote and a backslash in a value.',
        )
    if len(modules) > 1:
        raise illegal(
            f"The option kafka.sasl.jaas.config contains {len(modules)} login modules, should be 1 module",
            "Leave the others out.",
        )
    return modules[0]


def _module_tokens(text: str) -> list[list[_Token]]:
    """Return the tokens of each login module. Java wants a semicolon after the last one too; here it is optional."""
    parts: list[list[_Token]] = [[]]
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _UnreadableError
        at = match.end()
        kind = match.lastgroup
        if kind == "mark" and match[kind] == ";":
            parts.append([])
        elif kind is not None:
            token = _ESCAPE.sub(_unescaped, match[kind]) if kind in {"double", "single"} else match[kind]
            parts[-1].append(("mark" if kind == "mark" else "text", token))
    return parts if parts[-1] else parts[:-1]


def _unescaped(match: re.Match[str]) -> str:
    letters = match[1]
    return chr(int(letters, 8)) if letters[0] in "01234567" else _ESCAPED.get(letters, letters)


def _module(tokens: list[_Token]) -> tuple[str, dict[str, str]]:
    """Return the name and the options of one login module; the last of two equal options wins, as in Java."""
    try:
        (_, name), (_, flag), *options = tokens
    except ValueError:
        raise _UnreadableError from None
    if not _CLASS_NAME.fullmatch(name) or flag.lower() not in _FLAGS or len(options) % 3:
        raise _UnreadableError
    values: dict[str, str] = {}
    for (key_kind, key), equals, (value_kind, value) in zip(options[::3], options[1::3], options[2::3], strict=True):
        if (key_kind, equals, value_kind) != ("text", _EQUALS, "text"):
            raise _UnreadableError
        values[key] = value
    return name, values


def _apply_password(values: Mapping[str, str], plain: dict[str, str], secret: dict[str, Secret]) -> None:
    if "username" in values and "sasl.username" not in plain:
        plain["sasl.username"] = _uncut("username", values)
    if "password" in values and "sasl.password" not in secret:
        secret["sasl.password"] = Secret(_uncut("password", values))


def _uncut(name: str, values: Mapping[str, str]) -> str:
    if values[name].startswith(tuple(" \t\n\v\f\r")):
        raise illegal(
            f"The {name} in kafka.sasl.jaas.config begins with white space, which librdkafka cuts off",
            "Give one that begins with another character.",
        )
    return values[name]


def _apply_token(values: Mapping[str, str], plain: dict[str, str], secret: dict[str, Secret]) -> None:
    plain["sasl.oauthbearer.method"] = "oidc" if "clientId" in values else "default"
    if (name := values.get(f"{_UNSECURED_CLAIM}_sub")) is not None:  # as OAuthBearerUnsecuredLoginCallbackHandler
        if not re.fullmatch(r"[^\s,]+", name):
            raise illegal("unsecuredLoginStringClaim_sub cannot have spaces or commas here", "Give another name.")
        plain.setdefault(UNSECURED, "true")
        plain.setdefault("sasl.oauthbearer.config", f"principal={name}")
    if "clientId" in values and "sasl.oauthbearer.client.id" not in plain:
        plain["sasl.oauthbearer.client.id"] = _uncut("clientId", values)
    if "scope" in values:
        plain.setdefault("sasl.oauthbearer.scope", values["scope"])
    extensions = [f"{name[len(_EXTENSION) :]}={value}" for name, value in values.items() if name.startswith(_EXTENSION)]
    if extensions:
        plain.setdefault("sasl.oauthbearer.extensions", ",".join(extensions))
    if "clientSecret" in values and "sasl.oauthbearer.client.secret" not in secret:
        secret["sasl.oauthbearer.client.secret"] = Secret(_uncut("clientSecret", values))
