"""Settings of the JVM client that librdkafka names otherwise, or takes and must not have; without ``kafka.``.

librdkafka refuses names and values that it does not have, so they are not listed here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from connectors.core.options.kinds import Secret
from connectors.kafka.offsets import illegal

NOT_FOR: Final = {
    "consumer": {
        "auto.offset.reset": (
            "is not supported. Instead set the source option 'startingoffsets' to 'earliest' or 'latest' to specify "
            "where to start. Structured Streaming manages which offsets are consumed internally, rather than relying "
            "on the kafkaConsumer to do it"
        ),
        "enable.auto.commit": "is not supported",
    },
    "producer": {},
}
"""Settings that a source or a sink refuses, with the texts of Spark's own."""
_IGNORED: Final = (
    *("auto.include.jmx.reporter", "metric.reporters", "metrics."),
    *("group.instance.id", "max.poll.", "partition.assignment.strategy"),
    *("default.api.timeout.ms", "max.block.ms", "metadata.max.idle.ms", "socket.connection.setup.timeout.max.ms"),
    *("partitioner.adaptive.", "partitioner.availability.", "sasl.kerberos.ticket.", "ssl.secure.random."),
    *("sasl.login.connect.", "sasl.login.read.", "sasl.login.refresh.", "sasl.login.retry."),
    *(f"sasl.oauthbearer.{name}." for name in ("clock.skew", "expected", "jwks", "jwt.validator", "scope.claim")),
)
_OF_PRODUCERS: Final = (
    *("buffer.memory", "max.request.size", "partitioner.", "key.serializer", "value.serializer"),
    *("compression.gzip.", "compression.lz4.", "compression.zstd."),
)
IGNORED: Final = {
    "consumer": _IGNORED + _OF_PRODUCERS,
    "producer": (*_IGNORED, "key.deserializer", "value.deserializer"),
}
"""How settings begin that change no row and protect nothing: a query that moves here runs with them."""

_LOADS_CODE: Final = "Leave it out: it would load code of its own into every worker."
_MOCK: Final = "Leave it out: each client would get its own mock cluster, and everything written would be lost."
REFUSED: Final = {
    # Of ``ssl.providers``, those that are named by a path.
    **dict.fromkeys(("plugin.library.paths", "ssl.engine.id", "ssl.engine.location", "ssl.providers"), _LOADS_CODE),
    **dict.fromkeys(("test.mock.broker.rtt", "test.mock.num.brokers"), _MOCK),
    "sasl.kerberos.kinit.cmd": "Leave it out: it would run a command in every worker.",
}
"""What to do about settings that librdkafka would take, and no worker may have."""

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
_COUNTS: Final = frozenset(
    {"max.in.flight", "max.in.flight.requests.per.connection", "message.send.max.retries", "retries"}
)
_UNITS: Final = (".bytes", ".kbytes", ".messages", ".ms", ".size")

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
    # 10 ms; a task hands over some megabytes in that time. Measured with 1 ms: rows are spread over all partitions, at
    # no cost; with 0, another partition for each row, twice the processor time.
    "sticky.partitioning.linger.ms": "1",
}
"""What the JVM's producer does by itself, and librdkafka does not: keys land where the JVM client puts them."""

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
_OPTION: Final = re.compile(
    r"""\s+([\w.-]+)\s*=\s*(?:"((?:[^"\\\r\n]|\\["\\])*)"|'((?:[^'\\\r\n]|\\['\\])*)'|([^\s;="'/]++))(?=[\s;]|\Z)"""
)
_LOGIN_MODULE: Final = re.compile(
    rf"\s*([\w.$]+)\s+(?i:required|requisite|sufficient|optional)((?:{_OPTION.pattern})*)\s*;?\s*", re.ASCII
)
"""One login module. Java's own reader takes more: comments, other escapes, quoted names; a text with these is refused.
It may hold a password, so no error shows any of it but the name of the login module."""


def is_number(name: str) -> bool:
    """Return whether a setting is a whole number; librdkafka reads only its first digits."""
    return name in _COUNTS or (name.endswith(_UNITS) and name not in LINGER_SETTINGS)


def apply_jaas_config(text: str, plain: dict[str, str], secret: dict[str, Secret]) -> None:
    """Add the settings in ``sasl.jaas.config`` to those that may be shown and to the secrets; settings in these win."""
    match = _LOGIN_MODULE.fullmatch(text)
    if match is None:
        raise illegal(
            "The option kafka.sasl.jaas.config cannot be read",
            'Give one MODULE required NAME="VALUE" ...; and write \\" and \\\\ for a quote and a backslash in a value. '
            "Leave out comments and other escapes.",
        )
    module = match[1]
    values = {name: _unescaped(double, single) or bare for name, double, single, bare in _OPTION.findall(match[2])}
    if _is_class(module, _SCRAM) and values.get("tokenauth", "").lower() == "true":
        raise illegal(
            "A delegation token, tokenauth=true of ScramLoginModule, is not supported",
            "Give the name and the password of a user: librdkafka has no delegation tokens.",
        )
    if _is_class(module, _PLAIN, _SCRAM):
        _apply({"username": "sasl.username"}, {"password": "sasl.password"}, values, plain, secret)
    elif _is_class(module, _BEARER):
        plain["sasl.oauthbearer.method"] = "oidc" if "clientId" in values else "default"
        names = {"clientId": "sasl.oauthbearer.client.id", "scope": "sasl.oauthbearer.scope"}
        _apply(names, {"clientSecret": "sasl.oauthbearer.client.secret"}, values, plain, secret)
        extensions = [f"{name[len(_EXTENSION) :]}={values[name]}" for name in values if name.startswith(_EXTENSION)]
        if extensions:
            plain.setdefault("sasl.oauthbearer.extensions", ",".join(extensions))
    elif _is_class(module, f"{_MSK}.IAMLoginModule"):
        raise illegal(
            "The login module IAMLoginModule is a class of the JVM",
            "Give kafka.sasl.mechanism=OAUTHBEARER and tokenProvider=module:Class with a class that signs MSK tokens.",
        )
    else:
        raise illegal(
            f"The login module {module[:_SHORT]} is not supported",
            "Use PLAIN, SCRAM or OAUTHBEARER: the confluent-kafka wheel has no Kerberos.",
        )


def _unescaped(*quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", "".join(quoted))


def _apply(
    shown: Mapping[str, str],
    hidden: Mapping[str, str],
    values: Mapping[str, str],
    plain: dict[str, str],
    secret: dict[str, Secret],
) -> None:
    """Add options of a login module under the names of librdkafka, unless the settings have these."""
    for name, setting in {**shown, **hidden}.items():
        if name not in values or setting in plain or setting in secret:
            continue
        if values[name][:1].isspace():
            raise illegal(
                f"The {name} in kafka.sasl.jaas.config begins with white space, which librdkafka cuts off",
                "Give one that begins with another character.",
            )
        if name in hidden:
            secret[setting] = Secret(values[name])
        else:
            plain[setting] = values[name]


def check_login_handler(handler: str) -> None:
    """Refuse a login handler other than that of OIDC."""
    if not _is_class(handler, *_OIDC_HANDLERS):
        raise illegal(
            f"The login handler {handler[:_SHORT]} is a class of the JVM",
            "Give tokenProvider=module:Class with a class that signs MSK tokens, as the package "
            "aws-msk-iam-sasl-signer-python does."
            if f".{_MSK}." in f".{handler}"
            else "Give tokenProvider=module:Class with a Python class.",
        )


def _is_class(name: str, *classes: str) -> bool:
    """Return whether a class is one of these: by its last part, or its whole name, also inside of another package.

    Jars that bring Kafka along move it, as ``kafkashaded.org.apache.kafka`` on Databricks.
    """
    return any(name in {full, full.rpartition(".")[2]} or name.endswith(f".{full}") for full in classes)
