"""The log-in of a JVM client, in the words of librdkafka.

The text of ``sasl.jaas.config`` is read as Kafka's ``JaasConfig`` reads it with Java's ``StreamTokenizer``. What Java
drops without a word, or cuts, is refused here: an open quote, and a comment right behind a bare value, as in
``scope=https://host``. The text may hold a password, so no error shows any of it but the name of the login module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from connectors.core.options.kinds import Secret
from connectors.kafka.offsets import illegal

__all__ = ["NO_KERBEROS", "UNSECURED", "check_token_endpoint", "log_in", "login_handler"]

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
_CUT_OFF: Final = " \t\n\v\f\r"
"""What librdkafka cuts off at the beginning of every text."""
_USER_IN_URL: Final = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?/*[^/?#]*@", re.IGNORECASE)

_Token = tuple[str, str]
"""A kind, ``mark`` or ``text``, and what it says."""
_END: Final[_Token] = ("mark", ";")
_EQUALS: Final[_Token] = ("mark", "=")


class _UnreadableError(Exception):
    """The text is not in the form of a log-in."""


def log_in(text: str, plain: dict[str, str], secret: dict[str, Secret]) -> None:
    """Take the log-in of a JVM client apart.

    Args:
        text: of ``sasl.jaas.config``.
        plain: settings so far, which win; what may be shown is added.
        secret: the same for secrets.

    Raises:
        OptionError: the text cannot be read, or is a log-in that librdkafka does not have.
    """
    module, values = _login_module(text)
    if _is_class(module, _SCRAM) and values.get("tokenauth", "").lower() == "true":
        raise illegal(
            "The log-in by a delegation token, tokenauth=true of ScramLoginModule, is not supported",
            "Give the name and the password of a user: librdkafka has no delegation tokens.",
        )
    if _is_class(module, _PLAIN, _SCRAM):
        _log_in_by_password(values, plain, secret)
    elif _is_class(module, _BEARER):
        _log_in_by_token(values, plain, secret)
    elif _is_class(module, f"{_MSK}.IAMLoginModule"):
        raise illegal(
            "The log-in IAMLoginModule is a class of the JVM",
            "Give kafka.sasl.mechanism=OAUTHBEARER and tokenProvider=module:Class with a class that signs MSK tokens.",
        )
    else:
        raise illegal(
            f"The log-in {module[:_SHORT]} is not supported",
            NO_KERBEROS if module.endswith("Krb5LoginModule") else "Use PLAIN, SCRAM or OAUTHBEARER.",
        )


def login_handler(plain: dict[str, str]) -> None:
    """The login handler of a JVM client: the one of OIDC is built in, others are classes of the JVM.

    Raises:
        OptionError: it is another one.
    """
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
    """Refuse a user or a password in the URL that tokens come from: librdkafka logs that URL where the log-in fails.

    Raises:
        OptionError: there is one.
    """
    if _USER_IN_URL.match(plain.get("sasl.oauthbearer.token.endpoint.url", "")):
        raise illegal(
            "The option kafka.sasl.oauthbearer.token.endpoint.url holds a user or a password, and URLs are logged",
            "Give kafka.sasl.oauthbearer.client.id and kafka.sasl.oauthbearer.client.secret instead.",
        )


def _is_class(given: str, *names: str) -> bool:
    """Whether a class is one of these: by its whole name, also moved into another package, or by its last part alone.

    Jars that bring Kafka along move it, as ``kafkashaded.org.apache.kafka`` on Databricks.
    """
    return any(given in {name, name.rpartition(".")[2]} or given.endswith(f".{name}") for name in names)


def _login_module(text: str) -> tuple[str, dict[str, str]]:
    """The one login module of a text, and its options."""
    try:
        modules = [_module(tokens) for tokens in _parted(text)]
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


def _parted(text: str) -> list[list[_Token]]:
    """The tokens of each login module. Java wants a semicolon behind the last one too; here it may be left out."""
    parts: list[list[_Token]] = [[]]
    for token in _tokens(text):
        if token == _END:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts if parts[-1] else parts[:-1]


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _UnreadableError
        at = found.end()
        if found.lastgroup is None:
            continue
        said = found[found.lastgroup]
        if found.lastgroup in {"double", "single"}:
            said = _ESCAPE.sub(_unescaped, said)
        yield "mark" if found.lastgroup == "mark" else "text", said


def _unescaped(found: re.Match[str]) -> str:
    said = found[1]
    return chr(int(said, 8)) if said[0] in "01234567" else _ESCAPED.get(said, said)


def _module(tokens: list[_Token]) -> tuple[str, dict[str, str]]:
    """Name and options of one login module; an option that is given twice is the last one, as in Java."""
    if len(tokens) < 2:  # noqa: PLR2004 - a name and a flag
        raise _UnreadableError
    (_, name), (_, flag), *options = tokens
    if not _CLASS_NAME.fullmatch(name) or flag.lower() not in _FLAGS or len(options) % 3:
        raise _UnreadableError
    values: dict[str, str] = {}
    for (key_kind, key), equals, (value_kind, value) in zip(options[::3], options[1::3], options[2::3], strict=True):
        if (key_kind, equals, value_kind) != ("text", _EQUALS, "text"):
            raise _UnreadableError
        values[key] = value
    return name, values


def _log_in_by_password(values: Mapping[str, str], plain: dict[str, str], secret: dict[str, Secret]) -> None:
    if "username" in values and "sasl.username" not in plain:
        plain["sasl.username"] = _uncut("username", values)
    if "password" in values and "sasl.password" not in secret:
        secret["sasl.password"] = Secret(_uncut("password", values))


def _uncut(name: str, values: Mapping[str, str]) -> str:
    """A value that librdkafka takes as it is."""
    if values[name].startswith(tuple(_CUT_OFF)):
        raise illegal(
            f"The {name} in kafka.sasl.jaas.config begins with white space, which librdkafka cuts off",
            "Give one that begins with another character.",
        )
    return values[name]


def _log_in_by_token(values: Mapping[str, str], plain: dict[str, str], secret: dict[str, Secret]) -> None:
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


NO_KERBEROS: Final = "Kerberos is not in the wheel of confluent-kafka; use PLAIN, SCRAM or OAUTHBEARER."
