"""Tokens of OAuth for a registry: the client credentials grant (RFC 6749, section 4.4), as Confluent's clients ask.

Id and secret go into the header, grant and scope into the form. A new token is asked for when a fifth of the old one's
life is left.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from connectors.core.errors import ConnectorError, CredentialsError, ServiceUnavailableError
from connectors.core.options.providers import Provider, token_of
from connectors.registry.options import TOKEN, RegistryOptions

Send = Callable[[str, Mapping[str, str], bytes], Awaitable[tuple[int, bytes]]]
"""Posts headers and a body to a URL; returns status and body."""

_LIFE_USED: Final = 0.8
_LIFE_UNKNOWN: Final = 300.0
_LONGEST_LIFE: Final = 86400.0 * 366
_OAUTH_ERROR: Final = re.compile(r"[a-z_]{1,60}")


class OAuthTokens:
    """The tokens of one registry's client; threads share one."""

    def __init__(self, options: RegistryOptions, send: Send, transient: frozenset[int]) -> None:
        self._url = options.token_url or "credentialProvider"
        secret = "" if options.client_secret is None else options.client_secret.reveal()
        login = base64.b64encode(f"{options.client_id}:{secret}".encode()).decode()
        self._headers = {
            "Authorization": f"Basic {login}",
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        scope = {} if options.scope is None else {"scope": options.scope}
        self._form = urlencode({"grant_type": "client_credentials", **scope}).encode()
        self._send, self._transient = send, transient
        self._provider = None if options.credential_provider is None else Provider(options.credential_provider)
        self._lock = threading.Lock()  # each request has an event loop in a thread of its own, which may wait
        self._token, self._renew_at, self._expires_at = "", 0.0, 0.0

    async def get(self, refused: str = "") -> str:
        """Return a token other than ``refused``.

        Raises:
            ServiceUnavailableError: the token endpoint does not answer, and the last token has expired.
            CredentialsError: it refuses the client, or answers with no token.
        """
        with self._lock:
            usable = self._token and self._token != refused
            if usable and time.monotonic() < self._renew_at:
                return self._token
            try:
                await self._renew()
            except ServiceUnavailableError:
                if not usable or time.monotonic() >= self._expires_at:
                    raise
            return self._token

    async def _renew(self) -> None:
        asked = time.monotonic()
        token, life = await self._requested() if self._provider is None else self._provided(self._provider)
        if not isinstance(token, str) or not TOKEN.fullmatch(token):
            raise self._refused(f"The response of {self._url} holds no access_token that a header can hold")
        try:
            seconds = min(max(float(life), 0.0), _LONGEST_LIFE)
        except (TypeError, ValueError):
            seconds = _LIFE_UNKNOWN
        self._token, self._renew_at, self._expires_at = token, asked + seconds * _LIFE_USED, asked + seconds

    def _provided(self, provider: Provider) -> tuple[Any, Any]:
        result = token_of(provider, provider())
        expiry = result["expires_at"]
        return result["token"], _LONGEST_LIFE if expiry is None else expiry.timestamp() - time.time()

    async def _requested(self) -> tuple[Any, Any]:
        status, body = await self._send(self._url, self._headers, self._form)
        answer = _parsed(body)
        if status in self._transient:
            raise ServiceUnavailableError(
                "SCHEMA_REGISTRY_UNAVAILABLE", f"The token endpoint responds with HTTP {status}", self._url
            )
        if status != HTTPStatus.OK:
            name = answer.get("error")
            why = f": {name}" if isinstance(name, str) and _OAUTH_ERROR.fullmatch(name) else ""
            raise self._refused(f"The token endpoint gives no token (HTTP {status}{why})")
        return answer.get("access_token"), answer.get("expires_in", _LIFE_UNKNOWN)

    def _refused(self, what: str) -> ConnectorError:
        action = (
            "Check bearer.auth.client.id, bearer.auth.client.secret, bearer.auth.scope and "
            "bearer.auth.issuer.endpoint.url, or credentialProvider."
        )
        return CredentialsError("SCHEMA_REGISTRY_CREDENTIALS", what, self._url, action)


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
