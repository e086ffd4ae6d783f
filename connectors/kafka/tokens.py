"""Tokens of SASL OAUTHBEARER from a class of the user's, such as one that signs for MSK IAM."""

from __future__ import annotations

import importlib
from typing import Any, Final

from connectors.core.errors import OptionError

__all__ = ["TokenCallback"]

_POLLS: Final = 500
_POLL_SECONDS: Final = 0.01


class TokenCallback:
    """What librdkafka calls when it needs a token.

    Args:
        path: ``module:Class``; the class is made here, without arguments.

    Raises:
        OptionError: there is no such class.
    """

    def __init__(self, path: str) -> None:
        module, _, name = path.partition(":")
        try:
            self._provider = getattr(importlib.import_module(module), name)()
        except (ImportError, AttributeError) as error:
            raise OptionError(
                "KAFKA_TOKEN_PROVIDER",
                f"The class {path} cannot be made: {error}",
                "tokenProvider",
                "Give module:Class; the module must be importable on the driver and on the executors.",
            ) from None
        self._called = False

    def __call__(self, _config: str) -> tuple[Any, ...]:
        """A token, when it expires, the principal, and extensions."""
        self._called = True
        token, expires, *rest = self._provider.token()
        principal = rest[0] if rest else ""
        return token, float(expires), principal, rest[1] if len(rest) > 1 else {}

    def serve_first(self, client: Any) -> None:
        """Let a new client call, so that its first request need not wait: it asks for a token as soon as it is made."""
        for _ in range(_POLLS):
            if self._called:
                return
            client.poll(_POLL_SECONDS)
