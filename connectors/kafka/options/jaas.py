"""The authentication of a JVM client, translated to settings of librdkafka.

The text of ``sasl.jaas.config`` is read as Kafka's ``JaasConfig`` reads it with Java's ``StreamTokenizer``. What Java
drops without a word, or cuts, is refused here: an open quote, and a comment right after a bare value, as in
``scope=https://host``. The text may hold a password, so no error shows any of it but the name of the login module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from connectors.core.options.kinds import Secret
from connectors.kafka.offsets import illegal

__all__ = ["NO_KERBEROS", "UNSECURED", "apply_jaas_config", "apply_login_handler", "check_token_endpoint"]

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
_END: Final[_Token] = ("mark", ";")
_EQUALS: Final[_Token] = ("mark", "=")


class _UnreadableError(Exception):
    """The text has not the form of a JAAS configuration."""


def apply_jaas_config(text: str, plain: dict[str, str], secret: dict[str, Secret]) -> None:
    """Add the settings in ``sasl.jaas.config`` to those that may be shown and to the secrets; settings in these win.

    Raises:
        OptionError: the text cannot be parsed, or librdkafka does not have this authentication.
    """
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
    """Replace the login handler of OIDC, which is built into librdkafka.

    Raises:
        OptionError: it is another one, a class of the JVM.
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
    """Refuse a user or a password in the URL that tokens come from: librdkafka logs it if authentication fails.

    Raises:
        OptionError: there is one.
    """
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
    """Return the one login module of a text, and its options."""
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
    for token in _tokens(text):
        if token == _END:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts if parts[-1] else parts[:-1]


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _UnreadableError
        at = match.end()
        if match.lastgroup is None:
            continue
        token = match[match.lastgroup]
        if match.lastgroup in {"double", "single"}:
            token = _ESCAPE.sub(_unescaped, token)
        yield "mark" if match.lastgroup == "mark" else "text", token


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
