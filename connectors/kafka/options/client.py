"""The settings of the client: what users write after ``kafka.``, translated to librdkafka.

Names of the JVM client are translated where librdkafka has the same under another name. Of the others, those that
change no row and protect nothing are ignored with one warning; the rest are named in one error.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, Final, Literal

from connectors.core.errors import OptionError
from connectors.core.options.declaration import Option, conflict, declared_options, option, resolve_secret
from connectors.core.options.kinds import IMPORT_PATH, SECRET, Kind, Secret, is_loopback, option_text
from connectors.core.options.outages import RETRY_TIMEOUT, OutageOptions
from connectors.core.options.transport import refuse_plaintext
from connectors.core.retry import OutageRule
from connectors.kafka import FORMAT
from connectors.kafka.offsets import illegal, refuse_nul
from connectors.kafka.options import jvm_compat as jvm

_log = logging.getLogger(__name__)
_TOKEN_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - a name
_LOGIN_HANDLER: Final = "sasl.login.callback.handler.class"
_UNPROTECTED: Final = "[KAFKA_UNPROTECTED] With %s %s."
_READABLE: Final = {"PLAIN", "OAUTHBEARER"}  # these send the secret itself

Role = Literal["consumer", "producer"]
Refusal = tuple[str, str]
"""What is wrong with a setting, and what to do about it."""

TEXT: Final = Kind("string", "a text", str)


def _parse_rack(text: str) -> str:
    if "${" in text:
        raise ValueError("in SQL Spark replaces it with a variable of the driver, and elsewhere nothing does")
    if text.startswith(_VARIABLE) and not _VARIABLE_NAME.fullmatch(text.removeprefix(_VARIABLE)):
        raise ValueError("it names no environment variable")
    return text


RACK: Final = Kind(
    "rack", "the rack, or env:NAME with the environment variable that holds it on each host", _parse_rack
)
_PREFIX: Final = "kafka."
_TWO_NAMES: Final = "they are two names of one setting and have different values"
_SHORT: Final = 200
_LONGEST_PAUSE_MS: Final = "10000"
"""librdkafka's default."""
_RACK: Final = "client.rack"
_VARIABLE: Final = "env:"
_VARIABLE_NAME: Final = re.compile(r"[^\s=\0]+")
_OUTAGE_RULE: Final = OutageRule(600.0, RETRY_TIMEOUT)
_ADDRESS: Final = re.compile(r"(?:[0-9a-zA-Z\-%._]*://)?\[?([0-9a-zA-Z\-%._:]*?)\]?(?::([0-9]+))?")
"""Host and port as ``org.apache.kafka.common.utils.Utils`` parses them; to librdkafka a port may be missing."""
_HIGHEST_PORT: Final = 65535
_USER_IN_URL: Final = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?/*[^/?#]*@", re.IGNORECASE)
_PEM: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\s*([A-Za-z0-9+/=\s]+?)\s*-----END \1-----")
_CONVERT: Final = {
    "key": ("keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12", "PKCS12"),
    "trust": ("keytool -list -rfc -keystore FILE > FILE.pem", "PEM without a password"),
}
"""By the store of the JVM: how to convert it, and to which type."""
_STORES: Final = frozenset(f"ssl.{store}store.{what}" for store in _CONVERT for what in ("type", "location"))


def _secret(name: str, doc: str, *, other: str = "", multiline: bool = False) -> Option:
    aliases = (f"{_PREFIX}{other}",) if other else ()
    return Option(f"{_PREFIX}{name}", SECRET, doc, aliases=aliases, sensitive=True, multiline=multiline)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaClientOptions(OutageOptions):
    """The options that reach Kafka, of source and sink; all others that begin with ``kafka.`` go to the client."""

    secret_settings: ClassVar[tuple[Option, ...]] = (
        _secret("sasl.password", "The password of SASL PLAIN and SCRAM."),
        _secret("sasl.jaas.config", "The login module of a JVM client: PLAIN, SCRAM or OAUTHBEARER.", multiline=True),
        _secret(
            "sasl.oauthbearer.client.secret",
            "The secret of an OIDC client.",
            other="sasl.oauthbearer.client.credentials.client.secret",
        ),
        _secret(
            "sasl.oauthbearer.assertion.private.key.pem",
            "The private key that signs assertions of an OIDC client, as PEM text.",
            multiline=True,
        ),
        _secret("sasl.oauthbearer.assertion.private.key.passphrase", "The password of that key."),
        _secret("ssl.key.pem", "The client's private key, as PEM text.", other="ssl.keystore.key", multiline=True),
        _secret("ssl.key.password", "The password of the client's private key."),
        _secret("ssl.keystore.password", "The password of a PKCS#12 key store."),
    )
    """The settings of librdkafka that are secrets; their names are hidden in plans like those of secret options."""
    bootstrap_servers: str | None = option(
        "kafka.bootstrap.servers",
        TEXT,
        "Brokers to begin with: host:port, separated by commas. Required.",
        default=None,
    )
    token_provider: str | None = option(
        "tokenProvider",
        IMPORT_PATH,
        "For SASL OAUTHBEARER, such as MSK IAM: module:Class, with arguments if it takes any, as in "
        "tokens:MskTokens?region=eu-west-1. The driver and each worker make one; its method token() returns the token "
        "and the time it expires, in seconds since 1970, and after these, if it likes, the principal and a dict of "
        "extensions.",
        default=None,
        instead_of=("credentialProvider", "serviceCredential", "databricks.serviceCredential"),
    )

    def topic_datasets(self, topics: Iterable[str]) -> list[tuple[str, str]]:
        """Return topics as OpenLineage names datasets: it takes the first of the servers, and asks for its port."""
        address, *_ = _broker_addresses(self.bootstrap_servers or "").split(",")
        has_port = not address.endswith("]") and ":" in address
        return [(f"kafka://{address}{'' if has_port else ':9092'}", topic) for topic in sorted(topics)]


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Names and values of librdkafka's settings, and when brokers that do not answer are given up.

    Pickles with its secrets; its ``repr`` shows none.
    """

    plain: tuple[tuple[str, str], ...] = ()
    secret: tuple[tuple[str, Secret], ...] = field(default=(), repr=False)
    token_provider: str | None = None
    outage_rule: OutageRule = _OUTAGE_RULE

    @property
    def uses_tokens(self) -> bool:
        """Whether it authenticates by tokens (OAUTHBEARER), which the plain path alone serves."""
        return _sasl_mechanism(dict(self.plain)) == "OAUTHBEARER"

    @property
    def is_idempotent(self) -> bool:
        return is_true(self.get("enable.idempotence") or "false")

    def get(self, name: str) -> str | None:
        """Return a setting that may be shown."""
        return dict(self.plain).get(name)

    @property
    def rack_variable(self) -> str | None:
        """The environment variable that holds the rack of a host, if ``client.rack`` names one."""
        rack = self.get(_RACK) or ""
        return rack.removeprefix(_VARIABLE) if rack.startswith(_VARIABLE) else None

    def revealed(self) -> dict[str, str]:
        """Return all settings, secrets too, with the rack of this host; for the client only."""
        settings = {**dict(self.plain), **{name: value.reveal() for name, value in self.secret}}
        if (variable := self.rack_variable) is not None:
            settings[_RACK] = os.environ.get(variable, "").strip()
        return settings


def split_client_options(
    cls: type[KafkaClientOptions], raw: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[dict[str, str], ClientSettings]:
    """Split raw options into those of a class and the settings of the client as the user gives them.

    Names of these are in lower case and without ``kafka.``; secrets are read, from ``environ`` or files.
    """
    declared = {name.lower() for one in declared_options(cls).values() for name in (one.name, *one.aliases)}
    own: dict[str, str] = {}
    client: dict[str, str] = {}
    for key, value in raw.items():
        lowered = key.lower()
        if lowered.startswith(_PREFIX) and lowered not in declared:
            client[lowered.removeprefix(_PREFIX)] = option_text(key, value, FORMAT)  # stripped as by the JVM's client
        else:
            own[key] = value
    taken = ((one.name.removeprefix(_PREFIX), _take_secret(one, client, environ)) for one in cls.secret_settings)
    secrets = tuple((name, value) for name, value in taken if value is not None)
    return own, ClientSettings(tuple(client.items()), secrets)


def _take_secret(declared: Option, client: dict[str, str], environ: Mapping[str, str]) -> Secret | None:
    names = (declared.name, *declared.aliases)
    texts = {client.pop(short) for name in names if (short := name.removeprefix(_PREFIX)) in client}
    if len(texts) > 1:
        raise conflict(FORMAT, declared.name, declared.aliases[0], _TWO_NAMES, f"Give only {declared.name}.")
    for text in texts:
        value = resolve_secret(declared.name, text, environ, FORMAT, multiline=declared.multiline)
        if not value:
            raise illegal(f"The option {declared.name} is empty", f"Give {declared.legal}.")
        return Secret(value)
    return None


def reader_settings(options: KafkaClientOptions, user: ClientSettings) -> ClientSettings:
    """Return the settings of the source's clients; errors as of `client_settings`."""
    refused: list[Refusal] = []
    wanted = dict(user.plain)
    isolation = wanted.get("isolation.level", "read_uncommitted").lower()
    if isolation not in {"read_uncommitted", "read_committed"}:
        advice = "Give read_uncommitted or read_committed."
        refused.append((f"The option kafka.isolation.level cannot be {isolation[:_SHORT]!r}", advice))
        isolation = "read_uncommitted"
    # No group is joined; librdkafka would hold the first one against kafka.max.poll.interval.ms.
    dropped = {"session.timeout.ms", "heartbeat.interval.ms", "isolation.level"}
    used = {name: value for name, value in wanted.items() if name not in dropped}
    # librdkafka's own defaults are read_committed, and no check for damage; those of the JVM client are not.
    return client_settings(
        options, user, {"check.crcs": "true", **used, "isolation.level": isolation}, refused, "consumer"
    )


def client_settings(
    options: KafkaClientOptions, user: ClientSettings, changed: Mapping[str, str], refused: list[Refusal], role: Role
) -> ClientSettings:
    """Translate the settings of the user: ``changed`` has them with the changes and defaults of source or sink.

    Raises:
        OptionError: no server is given, one setting has two values, or settings are refused; it names all, also those
            of the argument ``refused``.
    """
    if not options.bootstrap_servers:
        raise OptionError(
            "OPTION_MISSING",
            f"Option 'kafka.bootstrap.servers' must be specified for configuring Kafka {role}",
            FORMAT,
            "Give host:port of a broker.",
        )
    named = {"bootstrap.servers": options.bootstrap_servers, **dict(user.plain)}
    for name, other in jvm.OTHER_NAMES.items():
        if name in named and other in named and named[name].strip() != named[other].strip():
            raise conflict(FORMAT, f"kafka.{other}", f"kafka.{name}", _TWO_NAMES, f"Give only kafka.{other}.")
    plain = {"bootstrap.servers": _broker_addresses(options.bootstrap_servers)}
    texts = {name: f"Kafka option '{name}' {why}" for name, why in jvm.NOT_FOR[role].items() if name in named}
    refused = [(text, f"Leave kafka.{name} out.") for name, text in texts.items()] + refused
    plain |= _translate({name: changed[name] for name in changed if name not in texts}, role, refused)
    _refuse(refused, plain)
    secret = dict(user.secret)
    if "ssl.key.pem" in secret:
        secret["ssl.key.pem"] = Secret(_pem_lines(secret["ssl.key.pem"].reveal()))
    if (jaas := secret.pop("sasl.jaas.config", None)) is not None:
        jvm.apply_jaas_config(jaas.reveal(), plain, secret)
    if (handler := plain.pop(_LOGIN_HANDLER, None)) is not None:
        jvm.check_login_handler(handler)
        plain["sasl.oauthbearer.method"] = "oidc"  # which is built into librdkafka
    _check_tokens(plain, options.token_provider)
    _check_transport(plain)
    settings = ClientSettings(
        tuple(sorted(plain.items())), tuple(sorted(secret.items())), options.token_provider, options.outage_rule
    )
    for name, text in settings.revealed().items():
        refuse_nul(f"kafka.{name}", text)  # an escape in sasl.jaas.config or a file may hold one
    return settings


def _translate(changed: Mapping[str, str], role: Role, refused: list[Refusal]) -> dict[str, str]:
    """Return settings as librdkafka takes them; add what it must not have to ``refused``.

    Leaves out those that have no meaning here, with one warning that lists them.
    """
    if ignored := sorted(name for name in changed if name.startswith(jvm.IGNORED[role])):
        names = ", ".join(f"kafka.{name}" for name in ignored)
        warn_once("[KAFKA_SETTING_IGNORED] These settings of the JVM client have no effect here: %s.", names)
    used = {name: value for name, value in changed.items() if name not in ignored}
    plain: dict[str, str] = {}
    for name, value in used.items():
        renamed = jvm.RENAMED.get(name, name)
        if name in _STORES:
            continue
        if name in jvm.REFUSED and (name != "ssl.providers" or "/" in value):
            refused.append((f"The option kafka.{name} is not supported", jvm.REFUSED[name]))
        elif jvm.is_number(renamed) and whole_number(value) is None:
            advice = "Give a whole number without a unit."
            refused.append((f"The option kafka.{name} cannot be {value[:_SHORT]!r}", advice))
        else:
            # Of digits after a 0, librdkafka reads the octal number.
            plain[renamed] = str(whole_number(value)) if jvm.is_number(renamed) else value
    if plain.get("ssl.endpoint.identification.algorithm") == "":
        plain["ssl.endpoint.identification.algorithm"] = "none"  # as the JVM client has it
    # The longest pause between attempts to connect is no shorter than the first one, as with the JVM client.
    first = whole_number(plain.get("reconnect.backoff.ms", "0")) or 0
    if first > (whole_number(plain.get("reconnect.backoff.max.ms", _LONGEST_PAUSE_MS)) or 0):
        plain["reconnect.backoff.max.ms"] = str(first)
    plain |= {name: _pem_lines(plain[name]) for name in ("ssl.ca.pem", "ssl.certificate.pem") if name in plain}
    return plain | _stores(used)


def _refuse(refused: list[Refusal], plain: Mapping[str, str]) -> None:
    """Raise one error for all settings that are refused, by the pack or by librdkafka."""
    from connectors.kafka.native.library import unknown_settings  # noqa: PLC0415 - which imports options

    unknown = unknown_settings({name: value for name, value in plain.items() if name != _LOGIN_HANDLER})
    if refused or unknown:
        code = "OPTION_ILLEGAL" if refused else "KAFKA_SETTING"
        whats, actions = (dict.fromkeys(texts) for texts in zip(*refused, *unknown, strict=True))
        raise OptionError(code, "; ".join(whats), FORMAT, " ".join(actions))


@cache
def warn_once(text: str, *arguments: str) -> None:
    """Log once in a process: options are parsed for each batch, and each time a query is planned."""
    _log.warning(text, *arguments)


def is_true(value: str) -> bool:
    """Return whether librdkafka takes a value for true."""
    return value.strip().lower() in {"true", "t", "1"}


def whole_number(text: str) -> int | None:
    """Return a setting as a whole number; None for anything else."""
    return int(text) if re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", text) else None


def number_of(settings: Mapping[str, str], name: str, default: float) -> float:
    """Return a setting; the default if it is missing, or only the client can judge it."""
    try:
        return float(settings[name])
    except (KeyError, ValueError):
        return default


def _broker_addresses(text: str) -> str:
    """Return the servers as librdkafka takes them: the JVM client passes over a protocol before an address.

    Refuses addresses that librdkafka would look for elsewhere or try without end.
    """
    addresses = []
    for address in filter(None, map(str.strip, text.split(","))):
        match = _ADDRESS.fullmatch(address)
        host, port = match.groups() if match else ("", None)
        if not host or host.count(":") == 1 or not 0 < int(port or _HIGHEST_PORT) <= _HIGHEST_PORT:
            shown = "an address" if "@" in address else repr(address[:_SHORT])
            action = "Give host:port of the brokers, with commas between them."
            raise illegal(f"The option kafka.bootstrap.servers cannot hold {shown}", action)
        host = f"[{host}]" if ":" in host else host
        addresses.append(host if port is None else f"{host}:{port}")
    if not addresses:
        raise illegal("The option kafka.bootstrap.servers names no server", "Give host:port of a broker.")
    return ",".join(addresses)


def _pem_lines(text: str) -> str:
    """Return certificates or a key in the lines of PEM (RFC 7468): the JVM client takes spaces for ends of lines."""

    def lines(match: re.Match[str]) -> str:
        letters = re.findall(".{1,64}", "".join(match[2].split()))
        return "\n".join([f"-----BEGIN {match[1]}-----", *letters, f"-----END {match[1]}-----\n"])

    return _PEM.sub(lines, text)


def _sasl_mechanism(plain: Mapping[str, str]) -> str:
    return plain.get("sasl.mechanism", plain.get("sasl.mechanisms", "")).strip().upper()


def _check_tokens(plain: Mapping[str, str], provider: str | None) -> None:
    """Refuse an authentication by tokens that nothing gives: the client would wait for them without a word."""
    mechanism = _sasl_mechanism(plain)
    if provider is not None and mechanism != "OAUTHBEARER":
        why = "only the mechanism OAUTHBEARER uses tokens, so nothing would ask for one"
        action = "Give kafka.sasl.mechanism=OAUTHBEARER, or leave tokenProvider out."
        raise conflict(FORMAT, "tokenProvider", "kafka.sasl.mechanism", why, action)
    unsecured = is_true(plain.get("enable.sasl.oauthbearer.unsecure.jwt", ""))
    own = unsecured or plain.get("sasl.oauthbearer.method", "").strip().lower() == "oidc"
    authenticates = plain.get("security.protocol", "").strip().upper().startswith("SASL")
    if authenticates and mechanism == "OAUTHBEARER" and provider is None and not own:
        raise illegal(
            "The mechanism OAUTHBEARER needs tokens, and nothing provides them",
            "Give tokenProvider=module:Class, or kafka.sasl.oauthbearer.method=oidc with a token endpoint.",
        )


def _check_transport(plain: Mapping[str, str]) -> None:
    """Refuse what sends a secret over plain http, and warn of what lets others read or take the place of the broker."""
    endpoint = plain.get(_TOKEN_ENDPOINT, "")
    if _USER_IN_URL.match(endpoint):  # librdkafka logs it if authentication fails
        raise illegal(
            f"The option kafka.{_TOKEN_ENDPOINT} contains a user or a password, and URLs are logged",
            "Give kafka.sasl.oauthbearer.client.id and kafka.sasl.oauthbearer.client.secret instead.",
        )
    refuse_plaintext(endpoint, f"The option kafka.{_TOKEN_ENDPOINT}", FORMAT, "Give an https:// URL.")
    protocol = plain.get("security.protocol", "PLAINTEXT").strip().upper()
    mechanism = _sasl_mechanism(plain)
    hosts = [server.strip().rpartition(":")[0].strip("[]") for server in plain["bootstrap.servers"].split(",")]
    if protocol == "SASL_PLAINTEXT" and mechanism in _READABLE and not all(map(is_loopback, hosts)):
        what = f"the mechanism {mechanism} sends credentials that anyone on the network path can read and use"
        warn_once(_UNPROTECTED, "kafka.security.protocol=SASL_PLAINTEXT", what)
    if protocol.endswith("SSL"):
        if not is_true(plain.get("enable.ssl.certificate.verification") or "true"):
            what = "certificates are not verified, so another server can pass for the brokers"
            warn_once(_UNPROTECTED, "kafka.enable.ssl.certificate.verification=false", what)
        elif plain.get("ssl.endpoint.identification.algorithm") == "none":
            what = "a certificate for any name is accepted, so another server can pass for the brokers"
            warn_once(_UNPROTECTED, "kafka.ssl.endpoint.identification.algorithm=none", what)


def _stores(used: Mapping[str, str]) -> dict[str, str]:
    """Return key and trust stores of a JVM client as OpenSSL takes them."""
    stores: dict[str, str] = {}
    for store, (command, wanted) in _CONVERT.items():
        location = used.get(f"ssl.{store}store.location")
        kind = used.get(f"ssl.{store}store.type", "JKS").upper()
        if location is None:
            continue
        if kind == "PEM" and store == "trust":
            stores["ssl.ca.location"] = location
        elif kind == "PEM":
            stores |= {"ssl.certificate.location": location, "ssl.key.location": location}
        elif kind == "PKCS12" and store == "key":
            stores["ssl.keystore.location"] = location
        else:
            raise illegal(
                f"A {store} store of the type {kind} cannot be read by librdkafka",
                f"Convert it ({command}) and give kafka.ssl.{store}store.type={wanted}.",
            )
    return stores
