"""Settings of the client: what users write after ``kafka.``, in the words of librdkafka.

Names of the JVM client that librdkafka does not know are translated where a meaning exists. Of the others, those that
change no row and protect nothing are ignored with one warning; the rest stand in one error, with what to use instead.
What the source or sink needs is set after what the user gives.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict, declared_options, option
from connectors.core.options.kinds import SECRET, STRING, Kind, Secret, option_text
from connectors.kafka.client.librdkafka import unknown_settings
from connectors.kafka.offsets import CONNECTOR, illegal, refuse_nul
from connectors.kafka.options.jaas import UNSECURED, check_token_endpoint, log_in, login_handler
from connectors.kafka.options.jvm_compat import broker_addresses, is_number, nearest_value, pem_lines, whole_number

__all__ = [
    "PREFIX",
    "TEXT",
    "ClientSettings",
    "KafkaClientOptions",
    "Refusal",
    "check_names",
    "common_settings",
    "is_true",
    "reader_settings",
    "split_client_options",
]

_log = logging.getLogger(__name__)

Refusal = tuple[str, str]
"""What is wrong with a setting, and what to do about it."""

PREFIX: Final = "kafka."
_SHORT: Final = 200

_KEYS_AS_BYTES: Final = (
    "is not supported as keys are deserialized as byte arrays with ByteArrayDeserializer. Use DataFrame operations to "
    "explicitly deserialize the keys"
)
_VALUES_AS_BYTES: Final = (
    "is not supported as values are deserialized as byte arrays with ByteArrayDeserializer. Use DataFrame operations "
    "to explicitly deserialize the values"
)
_NOT_FOR_SOURCES: Final = {
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
_NO_GROUP: Final = "no consumer group is joined"
_KEYLESS: Final = "kafka.sticky.partitioning.linger.ms says how rows without a key are spread"
_CHECKED_BY_BROKERS: Final = "brokers check tokens, clients do not"
_OWN_TIMES: Final = "librdkafka has times of its own for asking for a token"
_RENEWED_EARLY: Final = "a token is renewed when 80 percent of its life are over"
_NO_METRICS: Final = "librdkafka has no metrics of the JVM"
_IGNORED: Final = {
    "auto.include.jmx.reporter": _NO_METRICS,
    "default.api.timeout.ms": (
        "fetchOffset.numRetries, fetchOffset.retryIntervalMs and kafka.socket.timeout.ms say how long answers are "
        "waited for"
    ),
    "group.instance.id": _NO_GROUP,
    "max.block.ms": "kafka.delivery.timeout.ms says how long a record may take",
    "max.poll.interval.ms": _NO_GROUP,
    "max.poll.records": "maxOffsetsPerTrigger and maxRecordsPerPartition say how much is read at a time",
    "metadata.max.idle.ms": "kafka.topic.metadata.refresh.interval.ms says how often topics are looked up",
    "metric.reporters": _NO_METRICS,
    "partition.assignment.strategy": _NO_GROUP,
    "partitioner.adaptive.partitioning.enable": _KEYLESS,
    "partitioner.availability.timeout.ms": _KEYLESS,
    "sasl.kerberos.ticket.renew.jitter": "kafka.sasl.kerberos.min.time.before.relogin says when a ticket is renewed",
    "sasl.kerberos.ticket.renew.window.factor": (
        "kafka.sasl.kerberos.min.time.before.relogin says when a ticket is renewed"
    ),
    "sasl.login.connect.timeout.ms": _OWN_TIMES,
    "sasl.login.read.timeout.ms": _OWN_TIMES,
    "sasl.login.refresh.buffer.seconds": _RENEWED_EARLY,
    "sasl.login.refresh.min.period.seconds": _RENEWED_EARLY,
    "sasl.login.refresh.window.factor": _RENEWED_EARLY,
    "sasl.login.refresh.window.jitter": _RENEWED_EARLY,
    "sasl.login.retry.backoff.max.ms": _OWN_TIMES,
    "sasl.login.retry.backoff.ms": _OWN_TIMES,
    "sasl.oauthbearer.clock.skew.seconds": _CHECKED_BY_BROKERS,
    "sasl.oauthbearer.expected.audience": _CHECKED_BY_BROKERS,
    "sasl.oauthbearer.expected.issuer": _CHECKED_BY_BROKERS,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": _CHECKED_BY_BROKERS,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": _CHECKED_BY_BROKERS,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": _CHECKED_BY_BROKERS,
    "sasl.oauthbearer.jwks.endpoint.url": _CHECKED_BY_BROKERS,
    "sasl.oauthbearer.jwt.validator.class": _CHECKED_BY_BROKERS,
    "sasl.oauthbearer.scope.claim.name": _CHECKED_BY_BROKERS,
    "socket.connection.setup.timeout.max.ms": "kafka.socket.connection.setup.timeout.ms is the only such time",
    "ssl.secure.random.implementation": "OpenSSL is used",
}
"""Settings of the JVM client that change no row and protect nothing, and why they have no meaning here."""
_OPENSSL: Final = "Leave it out: OpenSSL is used."
_TLS_VERSION: Final = "Leave it out: the newest version of TLS that both sides know is used."
_LOADS_CODE: Final = "Leave it out: it would load code of its own into every worker."
_MOCK: Final = "Leave it out: each client would have a cluster of its own, and what is written would be gone."
_CALLBACK: Final = "Leave it out: it is a function of Python, and an option is a text."
_REFUSED: Final = {
    **dict.fromkeys(("error_cb", "stats_cb", "throttle_cb", "on_commit", "on_delivery", "logger"), _CALLBACK),
    "oauth_cb": "Use tokenProvider.",
    "default.topic.config": "Leave it out, and give the settings in it by themselves.",
    "plugin.library.paths": _LOADS_CODE,
    "ssl.engine.id": _LOADS_CODE,
    "ssl.engine.location": _LOADS_CODE,
    "sasl.kerberos.kinit.cmd": "Leave it out: it would run a command in every worker.",
    "test.mock.broker.rtt": _MOCK,
    "test.mock.num.brokers": _MOCK,
    "ssl.truststore.password": "Use a trust store in PEM, which has none: kafka.ssl.truststore.type=PEM.",
    "ssl.provider": _OPENSSL,
    "ssl.protocol": _TLS_VERSION,
    "ssl.enabled.protocols": _TLS_VERSION,
    "ssl.engine.factory.class": "Use kafka.ssl.ca.location, kafka.ssl.certificate.location and kafka.ssl.key.location.",
    "sasl.client.callback.handler.class": "Use tokenProvider.",
    "sasl.login.class": "Use tokenProvider.",
    "security.providers": _OPENSSL,
    "exclude.internal.topics": "Leave it out: subscribePattern reads no internal topics; subscribe can name them.",
    "transaction.two.phase.commit.enable": "Leave it out: deliveryGuarantee=exactly_once ends its transactions itself.",
    "ssl.keymanager.algorithm": _OPENSSL,
    "ssl.trustmanager.algorithm": _OPENSSL,
    "sasl.oauthbearer.jwt.retriever.class": (
        "Use kafka.sasl.oauthbearer.method=oidc with kafka.sasl.oauthbearer.grant.type, or tokenProvider."
    ),
    "sasl.oauthbearer.header.urlencode": (
        "Leave it out, and write client id and secret URL-encoded if the login server wants that."
    ),
}
_RENAMED: Final = {
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "sasl.oauthbearer.assertion.template.file": "sasl.oauthbearer.assertion.jwt.template.file",
}
_OTHER_NAMES: Final = _RENAMED | {
    "metadata.broker.list": "bootstrap.servers",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "sasl.mechanisms": "sasl.mechanism",
    "compression.codec": "compression.type",
    "message.send.max.retries": "retries",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
    "delivery.timeout.ms": "message.timeout.ms",
}
"""Of the client or of this pack: librdkafka takes the last of two names for one setting, without a word."""
_FAST_PATH: Final = (
    "Leave it out. CONNECTORS_NO_FAST_PATH=1 in the environment of the driver and the executors switches the fast path "
    "off."
)
_REMOVED: Final = {"nativereads": _FAST_PATH, "nativewrites": _FAST_PATH}
"""Options of earlier versions, in lower case, and what to do instead."""
_BUFFERS: Final = frozenset({"receive.buffer.bytes", "send.buffer.bytes"})
_LONGEST_PAUSE_MS: Final = "10000"
"""librdkafka's default."""


def _parse_any(text: str) -> str:
    return text


TEXT: Final = Kind("string", "a text", str, _parse_any)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaClientOptions:
    """What is needed to reach Kafka; everything else that begins with ``kafka.`` goes to the client as it is."""

    bootstrap_servers: str | None = option(
        "kafka.bootstrap.servers",
        TEXT,
        "Brokers to begin with: host:port, separated by commas. Required.",
        default=None,
    )
    sasl_password: Secret | None = option(
        "kafka.sasl.password", SECRET, "The password of SASL PLAIN and SCRAM.", default=None
    )
    sasl_jaas_config: Secret | None = option(
        "kafka.sasl.jaas.config",
        SECRET,
        "The log-in of a JVM client: PlainLoginModule, ScramLoginModule and OAuthBearerLoginModule are understood.",
        default=None,
        multiline=True,
    )
    oauthbearer_client_secret: Secret | None = option(
        "kafka.sasl.oauthbearer.client.secret",
        SECRET,
        "The secret of an OIDC client.",
        default=None,
        aliases=("kafka.sasl.oauthbearer.client.credentials.client.secret",),
    )
    oauthbearer_assertion_key_pem: Secret | None = option(
        "kafka.sasl.oauthbearer.assertion.private.key.pem",
        SECRET,
        "The private key that signs assertions of an OIDC client, as PEM text.",
        default=None,
        multiline=True,
    )
    oauthbearer_assertion_key_password: Secret | None = option(
        "kafka.sasl.oauthbearer.assertion.private.key.passphrase",
        SECRET,
        "The password of that key.",
        default=None,
    )
    ssl_key_pem: Secret | None = option(
        "kafka.ssl.key.pem",
        SECRET,
        "The client's private key, as PEM text.",
        default=None,
        multiline=True,
        aliases=("kafka.ssl.keystore.key",),
    )
    ssl_key_password: Secret | None = option(
        "kafka.ssl.key.password", SECRET, "The password of the client's private key.", default=None
    )
    ssl_keystore_password: Secret | None = option(
        "kafka.ssl.keystore.password", SECRET, "The password of a PKCS#12 key store.", default=None
    )
    token_provider: str | None = option(
        "tokenProvider",
        STRING,
        "For SASL OAUTHBEARER, such as MSK IAM: module:Class. The class is made without arguments, on the driver and "
        "in each worker; its method token() returns the token and the time it expires, in seconds since 1970, and "
        "after these, if it likes, the principal and a dict of extensions.",
        default=None,
    )


def split_client_options(cls: type, raw: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Raw options, parted into those that a class declares or that are no client's, and the client's.

    Returns:
        The first, and the second without ``kafka.``, with keys in lower case.

    Raises:
        OptionError: a name or a value holds a NUL, or the option was removed.
    """
    declared = {name.lower() for each in declared_options(cls).values() for name in (each.name, *each.aliases)}
    own: dict[str, str] = {}
    client: dict[str, str] = {}
    for key, value in raw.items():
        lowered = key.lower()
        if lowered in _REMOVED:
            raise OptionError("OPTION_UNKNOWN", f"The option {key} is not supported", CONNECTOR, _REMOVED[lowered])
        if lowered.startswith(PREFIX) and lowered not in declared:
            client[lowered.removeprefix(PREFIX)] = option_text(key, value, CONNECTOR)  # stripped as by the JVM's client
        else:
            own[key] = value
    return own, client


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of librdkafka. Pickles with its secrets; shows none.

    Attributes:
        plain: name and value of what may be shown.
        secret: name and value of the rest.
        token_provider: ``module:Class`` that gives tokens.
    """

    plain: tuple[tuple[str, str], ...] = ()
    secret: tuple[tuple[str, Secret], ...] = field(default=(), repr=False)
    token_provider: str | None = None

    def get(self, name: str) -> str | None:
        """A setting that may be shown."""
        return dict(self.plain).get(name)

    def revealed(self) -> dict[str, str]:
        """All settings, secrets too; for handing to the client."""
        return {**dict(self.plain), **{name: value.reveal() for name, value in self.secret}}


def reader_settings(options: KafkaClientOptions, given: Mapping[str, str]) -> ClientSettings:
    """The settings of the source's clients.

    Raises:
        OptionError: a setting is missing, refused, or belongs to the source alone.
    """
    if not options.bootstrap_servers:
        raise OptionError(
            "OPTION_MISSING",
            "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer",
            "kafka_py",
            "Give host:port of a broker.",
        )
    check_names(options, given)
    refused = [
        (f"Kafka option '{name}' {why}", f"Leave kafka.{name} out.")
        for name, why in _NOT_FOR_SOURCES.items()
        if name in given
    ]
    isolation = given.get("isolation.level", "read_uncommitted").lower()
    if isolation not in {"read_uncommitted", "read_committed"}:
        advice = "Give read_uncommitted or read_committed."
        refused.append((f"The option kafka.isolation.level cannot be {isolation[:_SHORT]!r}", advice))
        isolation = "read_uncommitted"
    # No group is joined; librdkafka would hold the first one against kafka.max.poll.interval.ms.
    judged = {"session.timeout.ms", "heartbeat.interval.ms", "isolation.level", *_NOT_FOR_SOURCES}
    used = {name: value for name, value in given.items() if name not in judged}
    # librdkafka's own defaults are read_committed, and not to look for damage; the JVM client's are not.
    own = {"check.crcs": "true", **used, "isolation.level": isolation}
    ignored = dict.fromkeys(_OF_PRODUCERS, "it is one of producers, and a source has none")
    return common_settings(options, own, refused, ignored)


def check_names(options: KafkaClientOptions, given: Mapping[str, str]) -> None:
    """Refuse two values for one setting under two of its names.

    Args:
        options: with the servers.
        given: settings of the user, without ``kafka.``.

    Raises:
        OptionError: there are.
    """
    values = {"bootstrap.servers": options.bootstrap_servers or "", **given}
    for name, other in _OTHER_NAMES.items():
        if name in values and other in values and values[name].strip() != values[other].strip():
            why = "they are two names of one setting and have different values"
            raise conflict(CONNECTOR, f"kafka.{other}", f"kafka.{name}", why, f"Give only kafka.{other}.")


def common_settings(
    options: KafkaClientOptions,
    given: Mapping[str, str],
    refused: Iterable[Refusal] = (),
    ignored: Mapping[str, str] | None = None,
) -> ClientSettings:
    """Translate what source and sink have in common: servers, authentication and encryption.

    Args:
        options: with the servers and the secrets.
        given: settings of the user and of ours, without ``kafka.``.
        refused: what is wrong with other settings.
        ignored: settings of this side alone that have no meaning, and why.

    Raises:
        OptionError: settings are refused; it names all of them.
    """
    plain, secret = {"bootstrap.servers": broker_addresses(options.bootstrap_servers or "")}, _secrets(options)
    given = _without_ignored(given, _IGNORED | (dict(ignored) if ignored else {}))
    stores, others = _split_stores(given)
    problems = [*refused]
    for name, value in others.items():
        refuse_nul(f"kafka.{name}", name, value)
        if name in _REFUSED or (name == "ssl.providers" and "/" in value):
            problems.append((f"The option kafka.{name} is not supported", _REFUSED.get(name, _LOADS_CODE)))
            continue
        known = _RENAMED.get(name, name)
        if is_number(known) and whole_number(value) is None:
            advice = "Give a whole number without a unit."
            problems.append((f"The option kafka.{name} cannot be {value[:_SHORT]!r}", advice))
            continue
        # The system's own size is -1 to the JVM client, and 0 to librdkafka.
        plain[known] = "0" if name in _BUFFERS and value.strip() == "-1" else nearest_value(known, value)
    if plain.get("ssl.endpoint.identification.algorithm") == "":
        plain["ssl.endpoint.identification.algorithm"] = "none"  # as the JVM client says it
    handlers = {"sasl.login.callback.handler.class", "sasl.jaas.config"}  # translated below
    unknown = unknown_settings({name: value for name, value in plain.items() if name not in handlers})
    if problems or unknown:
        code = "OPTION_ILLEGAL" if problems else "KAFKA_SETTING"
        problems += unknown
        whats, actions = ([*dict.fromkeys(texts)] for texts in zip(*problems, strict=True))
        raise OptionError(code, "; ".join(whats), CONNECTOR, " ".join(actions))
    plain |= _stores(stores) | _longest_pause(plain)
    plain |= {name: pem_lines(plain[name]) for name in ("ssl.ca.pem", "ssl.certificate.pem") if name in plain}
    if "ssl.key.pem" in secret:
        secret["ssl.key.pem"] = Secret(pem_lines(secret["ssl.key.pem"].reveal()))
    if options.sasl_jaas_config is not None:
        log_in(options.sasl_jaas_config.reveal(), plain, secret)
    login_handler(plain)
    check_token_endpoint(plain)
    if options.token_provider is not None and ":" not in options.token_provider:
        raise illegal("The option tokenProvider names no class", "Give module:Class.")
    _check_tokens(plain, options.token_provider)
    for name, text in [*plain.items(), *((name, value.reveal()) for name, value in secret.items())]:
        refuse_nul(f"kafka.{name}", text)  # also one that an escape in sasl.jaas.config or a file had
    return ClientSettings(tuple(sorted(plain.items())), tuple(sorted(secret.items())), options.token_provider)


def _secrets(options: KafkaClientOptions) -> dict[str, Secret]:
    secrets = {
        "sasl.password": options.sasl_password,
        "sasl.oauthbearer.client.secret": options.oauthbearer_client_secret,
        "sasl.oauthbearer.assertion.private.key.pem": options.oauthbearer_assertion_key_pem,
        "sasl.oauthbearer.assertion.private.key.passphrase": options.oauthbearer_assertion_key_password,
        "ssl.key.pem": options.ssl_key_pem,
        "ssl.key.password": options.ssl_key_password,
        "ssl.keystore.password": options.ssl_keystore_password,
    }
    return {name: value for name, value in secrets.items() if value is not None}


def _without_ignored(given: Mapping[str, str], ignored: Mapping[str, str]) -> dict[str, str]:
    """Leave out the settings that have no meaning here, with one warning that lists them."""
    found = {name for name in given if name in ignored or name.startswith("metrics.")}
    if found:
        _warn("; ".join(f"kafka.{name}: {ignored.get(name, _NO_METRICS)}" for name in sorted(found)))
    return {name: value for name, value in given.items() if name not in found}


@cache
def _warn(what: str) -> None:
    """Say once in a process what is parsed for each batch."""
    _log.warning("[KAFKA_SETTING_IGNORED] These settings of the JVM client have no meaning here. %s.", what)


def is_true(value: str) -> bool:
    """Whether librdkafka takes a value for true."""
    return value.strip().lower() in {"true", "t", "1"}


def _longest_pause(plain: Mapping[str, str]) -> dict[str, str]:
    """The longest pause between attempts to connect is no shorter than the first one, as with the JVM client."""
    first = whole_number(plain.get("reconnect.backoff.ms", "0")) or 0
    longest = whole_number(plain.get("reconnect.backoff.max.ms", _LONGEST_PAUSE_MS)) or 0
    return {"reconnect.backoff.max.ms": str(first)} if first > longest else {}


def _check_tokens(plain: Mapping[str, str], provider: str | None) -> None:
    """Refuse a log-in by tokens that come from nowhere: the client would wait for them without a word."""
    mechanism = plain.get("sasl.mechanism", plain.get("sasl.mechanisms", ""))
    unsecured = is_true(plain.get(UNSECURED, ""))
    own = unsecured or plain.get("sasl.oauthbearer.method", "").strip().lower() == "oidc"
    logs_in = plain.get("security.protocol", "").strip().upper().startswith("SASL")
    if provider is not None and mechanism.strip().upper() != "OAUTHBEARER":
        why = "tokens are for the mechanism OAUTHBEARER, and nothing would ask for them"
        action = "Give kafka.sasl.mechanism=OAUTHBEARER, or leave tokenProvider out."
        raise conflict(CONNECTOR, "tokenProvider", "kafka.sasl.mechanism", why, action)
    if logs_in and mechanism.strip().upper() == "OAUTHBEARER" and provider is None and not own:
        raise illegal(
            "The log-in OAUTHBEARER has nothing that gives tokens",
            "Give tokenProvider=module:Class, or kafka.sasl.oauthbearer.method=oidc with a token endpoint.",
        )


def _split_stores(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Type and location of key and trust stores, and everything else."""
    names = {f"ssl.{store}store.{what}" for store in ("key", "trust") for what in ("type", "location")}
    return {k: v for k, v in given.items() if k in names}, {k: v for k, v in given.items() if k not in names}


def _stores(given: Mapping[str, str]) -> dict[str, str]:
    """Key and trust stores of a JVM client as OpenSSL takes them."""
    found: dict[str, str] = {}
    for store in ("key", "trust"):
        location = given.get(f"ssl.{store}store.location")
        kind = given.get(f"ssl.{store}store.type", "JKS").upper()
        if location is None:
            continue
        if kind == "PEM" and store == "trust":
            found["ssl.ca.location"] = location
        elif kind == "PEM":
            found |= {"ssl.certificate.location": location, "ssl.key.location": location}
        elif kind == "PKCS12" and store == "key":
            found["ssl.keystore.location"] = location
        else:
            wanted = "PKCS12" if store == "key" else "PEM"
            way = (
                "keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12"
                if store == "key"
                else "keytool -list -rfc -keystore FILE > FILE.pem"
            )
            raise illegal(
                f"A {store} store of the type {kind} cannot be read by librdkafka",
                f"Convert it ({way}) and give kafka.ssl.{store}store.type={wanted}.",
            )
    return found
