"""The options of a schema registry, declared once; every function that takes ``schemaRegistry`` takes these.

Parsed on the driver; workers get the frozen dataclass.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, Final, Self
from urllib.parse import urlsplit

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict, option, parse_options
from connectors.core.options.kinds import BOOLEAN, DURATION, SECRET, STRING, Kind, Secret
from connectors.core.options.providers import credential_provider
from connectors.core.options.transport import refuse_plaintext
from connectors.registry.lookups import address_context, context_of, name_of, normal_context

_REGISTRY: Final = "schemaRegistry"
_PREFIX: Final = "confluent.schema.registry."
_URL: Final = "schema.registry.address"
_SUBJECT: Final = "schema.registry.subject"
_PREFIXES: Final = (_PREFIX, "schema.registry.")
_USER_INFO: Final = f"{_PREFIX}basic.auth.user.info"
_BEARER: Final = f"{_PREFIX}bearer.auth.token"
_PROVIDER: Final = "credentialProvider"
_BEARER_SOURCE: Final = f"{_PREFIX}bearer.auth.credentials.source"
_CLIENT_ID: Final = f"{_PREFIX}bearer.auth.client.id"
_CLIENT_SECRET: Final = f"{_PREFIX}bearer.auth.client.secret"
_SCOPE: Final = f"{_PREFIX}bearer.auth.scope"
_TOKEN_URL: Final = f"{_PREFIX}bearer.auth.issuer.endpoint.url"
_CLUSTER: Final = f"{_PREFIX}bearer.auth.logical.cluster"
_POOL: Final = f"{_PREFIX}bearer.auth.identity.pool.id"
_SOURCE_NAME: Final = f"{_PREFIX}basic.auth.credentials.source"
CA_OPTION: Final = f"{_PREFIX}ssl.ca.location"
CERTIFICATE_OPTION: Final = f"{_PREFIX}ssl.certificate.location"
_KEY: Final = f"{_PREFIX}ssl.key.location"
_KEY_PASSWORD: Final = f"{_PREFIX}ssl.key.password"
TOKEN: Final = re.compile(r"[\x21-\x7e]+")
"""What a header can hold as one word."""


def _parse_address(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise ValueError("it is not an http or https URL")
    if url.username or url.password:
        raise ValueError("it holds a user's name; give basic.auth.user.info instead")
    if re.search(r"[\s,?#\\]", text) or not text.isprintable() or (url.port is not None and not url.port):
        raise ValueError("it is not one URL of scheme, host, port and path")
    return text.rstrip("/")


def _parse_source(text: str) -> str:
    if text.upper() != "USER_INFO":
        raise ValueError("the login can come from nowhere else")
    return text


def _parse_token_url(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in {"http", "https"} or not url.hostname or not TOKEN.fullmatch(text) or url.fragment:
        raise ValueError("it is not an http or https URL")
    if "@" in url.netloc:
        raise ValueError("it holds a user's name; give bearer.auth.client.id instead")
    return text


def _parse_word(text: str) -> str:
    if not TOKEN.fullmatch(text):
        raise ValueError("it is empty, or a header cannot hold it")
    return text


class BearerSource(StrEnum):
    """Where bearer tokens come from, as Confluent's clients name it."""

    OAUTHBEARER = "oauthbearer"
    STATIC_TOKEN = "static_token"  # noqa: S105 - a name


def _parse_bearer_source(text: str) -> BearerSource:
    if text.upper() not in BearerSource.__members__:
        raise ValueError("this pack has no other way to a token")
    return BearerSource[text.upper()]


def _parse_type(text: str) -> str:
    if text.lower() != "confluent":
        raise ValueError("this function reads no messages of another one")
    return text.lower()


_TYPE: Final = Kind("choice", "confluent or glue", _parse_type)
_ADDRESS: Final = Kind("URL", "an http:// or https:// URL", _parse_address)
_SOURCE: Final = Kind("string", "USER_INFO", _parse_source)
_BEARER_SOURCES: Final = Kind("string", "OAUTHBEARER or STATIC_TOKEN", _parse_bearer_source)
WORD: Final = Kind("string", "a text of ASCII without white space", _parse_word)
_ENDPOINT: Final = Kind("URL", "an https:// URL; http:// only for this machine", _parse_token_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryOptions:
    """Where a registry is; made by `parse_registry_options`. Names as on Databricks, and short ones.

    Attributes:
        uses_confluent: whether Confluent's serializers write by it: with subjects, keys, and ids in headers.
        auto_register: whether a schema that is missing is added; else the options of `SubjectOptions` say it.
    """

    uses_confluent: ClassVar = True
    auto_register: ClassVar = False

    type: str = option(
        "type",
        _TYPE,
        "confluent: what speaks Confluent's interface. glue: the AWS Glue Schema Registry; azure, for Avro: the Azure "
        "Schema Registry. These have options of their own.",
        default="confluent",
    )
    address: str = option(_URL, _ADDRESS, "The URL of the registry.", aliases=("address", "url", "schema.registry.url"))
    subject: str | None = option(
        _SUBJECT,
        STRING,
        "The subject whose latest version says what the columns are, where the call has no descriptor set, class or "
        "schema, and what is written. Ids are looked up in the context that it names, as in :.staging:orders-value; "
        ":.staging: alone names a context and no subject.",
        default=None,
        aliases=("subject",),
    )
    user_info: Secret | None = option(
        _USER_INFO,
        SECRET,
        "User and password for basic authentication: user:password. Not with a bearer token.",
        default=None,
        aliases=("basic.auth.user.info",),
    )
    token: Secret | None = option(_BEARER, SECRET, "A bearer token.", default=None, aliases=("bearer.auth.token",))
    credential_provider: str | None = credential_provider(
        _PROVIDER, "a dict of token, a bearer token, and expires_at (a datetime in UTC, or None)"
    )
    bearer_source: BearerSource | None = option(
        _BEARER_SOURCE,
        _BEARER_SOURCES,
        "Where bearer tokens come from. OAUTHBEARER: from bearer.auth.issuer.endpoint.url, by the client credentials "
        "grant; a new one is asked for when a fifth of its life is left. STATIC_TOKEN: bearer.auth.token. When absent, "
        "it follows from these options.",
        default=None,
        aliases=("bearer.auth.credentials.source",),
    )
    client_id: str | None = option(
        _CLIENT_ID, WORD, "For OAUTHBEARER: the client's id.", default=None, aliases=("bearer.auth.client.id",)
    )
    client_secret: Secret | None = option(
        _CLIENT_SECRET,
        SECRET,
        "For OAUTHBEARER: the client's secret.",
        default=None,
        aliases=("bearer.auth.client.secret",),
    )
    scope: str | None = option(
        _SCOPE,
        STRING,
        "For OAUTHBEARER: the scopes to ask for, with spaces between them.",
        default=None,
        aliases=("bearer.auth.scope",),
    )
    token_url: str | None = option(
        _TOKEN_URL,
        _ENDPOINT,
        "For OAUTHBEARER: the token endpoint of the identity provider. Its certificate must descend from an authority "
        "of the system, or of ssl.ca.location. Redirects are not followed.",
        default=None,
        aliases=("bearer.auth.issuer.endpoint.url",),
    )
    logical_cluster: str | None = option(
        _CLUSTER,
        WORD,
        "With a bearer token for Confluent Cloud: the registry's logical cluster, such as lsrc-abc123; it is sent as "
        "target-sr-cluster.",
        default=None,
        aliases=("bearer.auth.logical.cluster",),
    )
    identity_pool: str | None = option(
        _POOL,
        WORD,
        "With a bearer token for Confluent Cloud: the identity pool, or several with commas between them; it is sent "
        "as Confluent-Identity-Pool-Id. Without it Confluent Cloud picks by its rules.",
        default=None,
        aliases=("bearer.auth.identity.pool.id",),
    )
    credentials_source: str | None = option(
        _SOURCE_NAME,
        _SOURCE,
        "Only USER_INFO is possible; taken so that options of Databricks can be used as they are.",
        default=None,
        aliases=("basic.auth.credentials.source",),
    )
    ca_file: str | None = option(
        CA_OPTION,
        STRING,
        "A file of certificates (PEM) that the registry's own must descend from; it must be on driver and executors.",
        default=None,
        aliases=("ssl.ca.location",),
        instead_of=("confluent.schema.registry.ssl.truststore.location",),
    )
    certificate_file: str | None = option(
        CERTIFICATE_OPTION,
        STRING,
        "A file with the client's certificate (PEM), and its key where there is no other file for that; it must be on "
        "driver and executors.",
        default=None,
        aliases=("ssl.certificate.location",),
        instead_of=("confluent.schema.registry.ssl.keystore.location",),
    )
    key_file: str | None = option(
        _KEY, STRING, "A file with the key of that certificate (PEM).", default=None, aliases=("ssl.key.location",)
    )
    key_password: Secret | None = option(
        _KEY_PASSWORD,
        SECRET,
        "The password of that key.",
        default=None,
        aliases=("ssl.key.password",),
        instead_of=("confluent.schema.registry.ssl.keystore.password",),
    )
    allow_insecure: bool = option(
        "allow.insecure",
        BOOLEAN,
        "Send the authentication over plain http to another machine, where anyone on the way can read it.",
        default="false",
        aliases=("allowInsecure",),
    )
    timeout: float = option(
        "request.timeout",
        DURATION,
        "How long one request may take: connecting, redirects and the whole response included.",
        default="10s",
        minimum="1ms",
        maximum="5m",
    )
    retry_timeout: float = option(
        "retry.timeout",
        DURATION,
        "How long a registry that does not answer, or answers HTTP 408, 425, 429, 500, 502, 503, 504 or 520 to 529, is "
        "asked again. Waits grow to 10s and are random; Retry-After is not read.",
        default="60s",
        minimum="0",
        maximum="1h",
    )

    ignore_read_rules: bool = option(
        "ignore.read.rules",
        BOOLEAN,
        "Read messages whose schema has rules that change what is read, such as the decryption of fields, without "
        "applying them: values are then as they are stored, an encrypted field as ciphertext. Otherwise such a schema "
        "cannot be read. It is for reading only: nothing is ever written without the rules for writing.",
        default="false",
        aliases=("ignoreReadRules",),
    )

    @property
    def named_subject(self) -> str | None:
        """The subject, if there is more to it than a context."""
        return self.subject if self.subject and name_of(self.subject) else None

    @property
    def context(self) -> str:
        """The context of all that names none; empty for the default one."""
        return normal_context(context_of(self.subject) or address_context(self.address))

    def subject_missing(self) -> OptionError:
        """Return the error for a call that writes without a subject."""
        what = "The option schema.registry.subject is required"
        return OptionError(
            "OPTION_MISSING", what, _REGISTRY, "Give the subject, or give the topic in the option topic."
        )

    def for_client(self) -> Self:
        """Return the options of the client, which is one for all subjects of a context."""
        return replace(self, subject=context_of(self.subject))


def parse_registry_options(raw: Mapping[str, str]) -> RegistryOptions:
    """Parse the dictionary passed as schemaRegistry; raises OptionError, also for options that contradict another."""
    options = parse_options(RegistryOptions, raw, os.environ, _REGISTRY)
    single = {_USER_INFO: options.user_info, _BEARER: options.token, _PROVIDER: options.credential_provider}
    logins = [name for name, value in (single | _of_oauth(options)).items() if value is not None]
    if logins[1:] and logins[0] in single:
        raise conflict(_REGISTRY, logins[0], logins[1], "a request has one authentication", "Give one of them.")
    options = _checked_bearer(options)
    if logins:
        for url, name in ((options.address, _URL), (options.token_url or "", _TOKEN_URL)):
            refuse_plaintext(
                url,
                f"With {logins[0]} the option {name}",
                _REGISTRY,
                "Give an https:// address, or allow it with the option allow.insecure=true.",
                allowed=options.allow_insecure,
            )
    tls = (
        (CA_OPTION, options.ca_file),
        (CERTIFICATE_OPTION, options.certificate_file),
        (_KEY, options.key_file),
        (_KEY_PASSWORD, options.key_password),
    )
    for name, value in tls:
        if value is not None and urlsplit(options.address).scheme == "http":
            raise conflict(_REGISTRY, name, _URL, "http has no TLS", "Give an https:// address.")
        if value is not None and name in {_KEY, _KEY_PASSWORD} and options.certificate_file is None:
            raise conflict(
                _REGISTRY, name, CERTIFICATE_OPTION, "a key is nothing without its certificate", "Give both."
            )
    if options.credentials_source is not None and options.user_info is None:
        raise conflict(
            _REGISTRY, _SOURCE_NAME, _USER_INFO, "the source is USER_INFO, and that is not given", "Give both."
        )
    if options.user_info is not None and options.user_info.reveal().find(":") < 1:
        raise registry_option_error(_USER_INFO, "must be a user, a colon and a password", "Give user:password.")
    if options.token is not None and not TOKEN.fullmatch(options.token.reveal()):
        raise registry_option_error(
            _BEARER, "holds white space, or a character that is not ASCII", "Give the token alone."
        )
    return options


def _of_oauth(options: RegistryOptions) -> dict[str, object]:
    return {
        _CLIENT_ID: options.client_id,
        _CLIENT_SECRET: options.client_secret,
        _TOKEN_URL: options.token_url,
        _SCOPE: options.scope,
    }


def _checked_bearer(options: RegistryOptions) -> RegistryOptions:
    """Return the options with the source of bearer tokens; raise an `OptionError` if something is missing for it."""
    needed = _of_oauth(options)
    source = options.bearer_source
    if source is None and any(value is not None for value in needed.values()):
        source = BearerSource.OAUTHBEARER
    if source is BearerSource.OAUTHBEARER:
        if options.token is not None:
            why = "OAUTHBEARER requests tokens itself"
            raise conflict(_REGISTRY, _BEARER_SOURCE, _BEARER, why, f"Leave {_BEARER} out.")
        missing = [name for name, value in needed.items() if value is None and name != _SCOPE]
        if missing:
            what = f"The option {missing[0]} is required with OAUTHBEARER"
            raise OptionError("OPTION_MISSING", what, _REGISTRY, f"Give {', '.join(missing)}.")
    elif source is BearerSource.STATIC_TOKEN and options.token is None:
        what = f"The option {_BEARER} is required with STATIC_TOKEN"
        raise OptionError("OPTION_MISSING", what, _REGISTRY, "Give the token.")
    for name, value in ((_CLUSTER, options.logical_cluster), (_POOL, options.identity_pool)):
        if value is not None and source is None and options.token is None and options.credential_provider is None:
            raise conflict(_REGISTRY, name, _BEARER_SOURCE, "it goes with a bearer token", "Give both.")
    return replace(options, bearer_source=source)


def split_registry(
    options: Mapping[str, str] | None,
    subject: str | None,
    address: str | None,
    schema_registry: Mapping[str, str] | None,
    function: str,
) -> tuple[Mapping[str, str], dict[str, str] | None]:
    """Return the options of a function and those of its registry, which are among them in Databricks' form.

    In that form the registry is an ``address``. None for the registry's if there is none. Raises an `OptionError` when
    it is given twice, or the subject is not text.
    """
    pairs = options or {}
    if not isinstance(subject, str | None):
        raise OptionError("OPTION_ILLEGAL", "The subject is not a string", "subject", "Give it as str, without lit().")
    named = {} if subject is None else {_SUBJECT: subject}
    if address is None:
        return pairs, None if schema_registry is None else {**schema_registry, **named}
    if schema_registry is not None:
        raise conflict(function, "schemaRegistryAddress", "schemaRegistry", "both say where it is", "Give one.")
    theirs = {name: value for name, value in pairs.items() if name.lower().startswith(_PREFIXES)}
    plain = {name: value for name, value in pairs.items() if name not in theirs}
    return plain, {_URL: address, **theirs, **named}


def registry_option_error(name: str, what: str, action: str) -> OptionError:
    """Return the error for an option of a registry whose value cannot be used."""
    return OptionError("OPTION_ILLEGAL", f"The option {name} {what}", _REGISTRY, action)
