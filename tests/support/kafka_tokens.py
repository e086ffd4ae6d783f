"""Unsigned tokens, which the test broker takes: from a class, as users write one, and from an OIDC token endpoint."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote


class UnsignedTokens:
    """Gives a token for the user of the test broker."""

    def token(self) -> tuple[str, float, str]:
        """The token, when it ends, and whose it is."""
        now = time.time()
        claims = {"sub": "shop", "iat": now - 5, "exp": now + 600}
        return f"{_part({'alg': 'none'})}.{_part(claims)}.", now + 600, "shop"


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


class TokenEndpoint:
    """The token endpoint of an OIDC provider on loopback, for the grant ``client_credentials``; a context manager.

    Args:
        client: the client that it knows.
        secret: of that client.
    """

    def __init__(self, client: str, secret: str) -> None:
        self._known = (client, secret)
        self.requests: list[dict[str, list[str]]] = []
        """The forms that were posted with the right secret."""
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                posted = self.rfile.read(int(self.headers["Content-Length"])).decode()
                status, answer = endpoint.answer(self.headers.get("Authorization", ""), parse_qs(posted))
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: Any) -> None:
                """It tells nobody."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"

    def answer(self, authorization: str, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        """Status and body for a request."""
        given = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if (unquote(given[0]), unquote(given[2])) != self._known or form.get("grant_type") != ["client_credentials"]:
            return 401, {"error": "invalid_client"}
        self.requests.append(form)
        token, expires, _ = UnsignedTokens().token()
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": int(expires - time.time())}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
