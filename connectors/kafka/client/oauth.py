"""Get tokens of SASL OAUTHBEARER from a class of the user's, such as one that signs for MSK IAM."""

from __future__ import annotations

import importlib
import logging
import re
from typing import Any, Final

from connectors.core.errors import ConnectorError, CredentialsError, OptionError, ServiceUnavailableError
from connectors.kafka.client.errors import AUTHENTICATION, setting_refused
from connectors.kafka.offsets import refuse_nul

_log = logging.getLogger(__name__)

_POLLS: Final = 500
_POLL_SECONDS: Final = 0.01
_SHORT: Final = 500
_PERMANENT: Final = (AttributeError, FileNotFoundError, ImportError, LookupError, NameError, PermissionError, TypeError)
"""What a provider raises that is wrong in itself; everything else may be the network, and may pass."""
_SECRET: Final = re.compile(
    r"""((?:secret|passw\w*|token|assertion|signature|credential|\bkey)["']?\s*[=:]\s*["']?)[^\s"'&,;)}]+"""
    r"""|(\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}|\beyJ[\w-]+\.[\w.-]+""",
    re.IGNORECASE,
)


class TokenCallback:
    """What librdkafka calls when it needs a token; ``path`` is the ``module:Class`` that gives them."""

    def __init__(self, path: str) -> None:
        self._where = f"tokenProvider={path}"
        module, _, name = path.partition(":")
        try:
            provider = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            what = f"The class {path} cannot be imported: {error}"
            raise OptionError("KAFKA_TOKEN_PROVIDER", what, "tokenProvider") from None
        try:
            self._provider = provider()
        except Exception as error:  # noqa: BLE001 - a class of the user's may raise anything
            raise self._failed(error) from None
        self._called = False
        self._succeeded = False
        self._failure: Exception | None = None

    def __call__(self, _config: str) -> tuple[Any, ...]:
        """Return a token, when it expires, the principal, and extensions."""
        self._called = True
        try:
            token, expires, *rest = self._provider.token()
            principal = rest[0] if rest else ""
            extensions = rest[1] if len(rest) > 1 else {}
            refuse_nul("the token, the principal or an extension", token, principal, *extensions, *extensions.values())
            result = token, float(expires), principal, extensions
        except Exception as error:
            # The client only learns that there was an error, and asks again in ten seconds.
            self._failure = error
            if self._succeeded:
                _log.warning("%s The old token is used until it expires.", self._failed(error))
            raise
        self._succeeded, self._failure = True, None
        return result

    def problem(self, error: Any) -> ConnectorError:
        """Return our error for the ``KafkaError`` of a client that could not be made."""
        if error.name() not in AUTHENTICATION:
            return setting_refused(error.str())
        if self._failure is not None:
            return self._failed(self._failure)
        if not self._called:
            return OptionError("KAFKA_TOKEN_PROVIDER", "The client asks for no token", self._where)
        if self._succeeded:
            what = "The token has expired, or it or its extensions do not have the form of RFC 7628"
            return CredentialsError("KAFKA_TOKEN_UNUSABLE", what, self._where)
        return ServiceUnavailableError("KAFKA_TOKEN_FAILED", "There was no token for ten seconds", self._where)

    def _failed(self, error: Exception) -> ConnectorError:
        text = _SECRET.sub(lambda match: f"{match[1] or match[2] or ''}...", str(error))[:_SHORT]
        kind = CredentialsError if isinstance(error, _PERMANENT) else ServiceUnavailableError
        return kind("KAFKA_TOKEN_FAILED", f"There is no token: {type(error).__name__}: {text}", self._where)

    def serve_first(self, client: Any) -> None:
        """Let a new client ask for its first token, so that its first request need not wait; newer clients do this."""
        for _ in range(_POLLS):
            if self._called:
                break
            client.poll(_POLL_SECONDS)
        if self._failure is not None:
            raise self._failed(self._failure)
