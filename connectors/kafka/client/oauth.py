"""Tokens of SASL OAUTHBEARER from a class of the user's, such as one that signs for MSK IAM."""

from __future__ import annotations

import importlib
import logging
import re
from typing import Any, Final

from connectors.core.errors import ConnectorError, CredentialsError, OptionError, ServiceUnavailableError
from connectors.kafka.client.errors import AUTHENTICATION, error_name, setting_refused
from connectors.kafka.offsets import refuse_nul

__all__ = ["TokenCallback"]

_log = logging.getLogger(__name__)

_POLLS: Final = 500
_POLL_SECONDS: Final = 0.01
_MOST_LETTERS: Final = 500
_NOT_PASSING: Final = (
    AttributeError,
    FileNotFoundError,
    ImportError,
    LookupError,
    NameError,
    PermissionError,
    TypeError,
)
"""What a provider raises that is wrong in itself; all else may be the network, and passes."""
_SECRET: Final = re.compile(
    r"""((?:secret|passw\w*|token|assertion|signature|credential|\bkey)["']?\s*[=:]\s*["']?)[^\s"'&,;)}]+"""
    r"""|(\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}|\beyJ[\w-]+\.[\w.-]+""",
    re.IGNORECASE,
)


class TokenCallback:
    """What librdkafka calls when it needs a token.

    Args:
        path: ``module:Class``; the class is made here, without arguments.

    Raises:
        OptionError: there is no such class.
        CredentialsError: it cannot be made.
        ServiceUnavailableError: it cannot be made now.
    """

    def __init__(self, path: str) -> None:
        self._where = f"tokenProvider={path}"
        module, _, name = path.partition(":")
        try:
            kind = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise OptionError(
                "KAFKA_TOKEN_PROVIDER",
                f"The class {path} cannot be made: {error}",
                "tokenProvider",
                "Give module:Class; the module must be importable on the driver and on the executors.",
            ) from None
        try:
            self._provider = kind()
        except Exception as error:  # noqa: BLE001 - a class of the user's may raise anything; it is told
            raise self._failed(error) from None
        self._called = False
        self._given = False
        self._failure: Exception | None = None

    def __call__(self, _config: str) -> tuple[Any, ...]:
        """A token, when it expires, the principal, and extensions."""
        self._called = True
        try:
            token, expires, *rest = self._provider.token()
            principal = rest[0] if rest else ""
            extensions = rest[1] if len(rest) > 1 else {}
            refuse_nul("the token, the principal or an extension", token, principal, *extensions, *extensions.values())
            found = token, float(expires), principal, extensions
        except Exception as error:
            # The client only learns that there was an error, and asks again in ten seconds.
            self._failure = error
            if self._given:
                _log.warning("%s The old token is used while it lives.", self._failed(error))
            raise
        self._given, self._failure = True, None
        return found

    def problem(self, error: Any) -> ConnectorError:
        """Our error for a client that could not be made.

        Args:
            error: a ``KafkaError``.
        """
        if error_name(error) not in AUTHENTICATION:
            return setting_refused(error.str())
        if self._failure is not None:
            return self._failed(self._failure)
        if not self._called:
            return OptionError(
                "KAFKA_TOKEN_PROVIDER",
                "The client asks for no token",
                self._where,
                "Give kafka.sasl.mechanism=OAUTHBEARER, and SASL_SSL or SASL_PLAINTEXT as kafka.security.protocol.",
            )
        if self._given:
            return CredentialsError(
                "KAFKA_TOKEN_UNUSABLE",
                "The token is over already, or it or its extensions are not in the form of RFC 7628",
                self._where,
                "Give the token, when it expires in seconds since 1970, and if needed the principal and a dictionary.",
            )
        return ServiceUnavailableError(
            "KAFKA_TOKEN_FAILED", "There was no token for ten seconds", self._where, "See what the class waits for."
        )

    def _failed(self, error: Exception) -> ConnectorError:
        """Our error for one of the provider."""
        text = _SECRET.sub(lambda found: f"{found[1] or found[2] or ''}...", str(error))[:_MOST_LETTERS]
        kind = CredentialsError if isinstance(error, _NOT_PASSING) else ServiceUnavailableError
        return kind(
            "KAFKA_TOKEN_FAILED",
            f"There is no token: {type(error).__name__}: {text}",
            self._where,
            "See whether the class can reach what gives it tokens, and may ask it.",
        )

    def serve_first(self, client: Any) -> None:
        """Let a new client call, so that its first request need not wait: it asks for a token as soon as it is made.

        Newer clients wait themselves.

        Raises:
            ConnectorError: there was no token.
        """
        for _ in range(_POLLS):
            if self._called:
                break
            client.poll(_POLL_SECONDS)
        if self._failure is not None:
            raise self._failed(self._failure)
