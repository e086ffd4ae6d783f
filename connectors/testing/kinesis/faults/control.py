"""The knobs of a Kinesis server in another process: a path of its own on the same port, with JSON.

Request: ``{"command": "jump", "arguments": {"seconds": 60}}``. Answer: ``{"result": null}``, or the status 400 with
``{"error": "the reason"}``. The names are those of `KinesisKnobs`.
"""

from __future__ import annotations

import http.client
import json
import threading
from types import TracebackType
from typing import Any, Self

from connectors.testing.kinesis.exchange import Exchange, Handler, Request
from connectors.testing.kinesis.faults.commands import KinesisCommands
from connectors.testing.kinesis.faults.knobs import KinesisKnobs

__all__ = ["KinesisControl", "with_control"]

_PATH = "/connectors.testing.KinesisControl"
_JSON = {"content-type": "application/json"}
_OK = 200


def with_control(handler: Handler, commands: KinesisCommands) -> Handler:
    """A handler that runs the commands of `KinesisControl`, and hands all other requests on."""

    def handle(request: Request, exchange: Exchange) -> None:
        if request.path != _PATH:
            handler(request, exchange)
            return
        try:
            call = json.loads(request.body)
            result = commands.run(str(call["command"]), dict(call["arguments"]))
        except (ValueError, KeyError) as error:
            exchange.answer(400, _JSON, json.dumps({"error": str(error)}).encode())
        else:
            exchange.answer(_OK, _JSON, json.dumps({"result": result}).encode())

    return handle


class KinesisControl(KinesisKnobs):
    """The knobs of a server by its endpoint; a context manager that closes its connection.

    Args:
        endpoint: ``HOST:PORT`` of a `KinesisServer`.
        timeout: real seconds that a command may take.
    """

    def __init__(self, endpoint: str, timeout: float = 60.0) -> None:
        self.endpoint = endpoint
        self._connection = http.client.HTTPConnection(endpoint, timeout=timeout)
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """What clients take as the URL of the endpoint."""
        return f"http://{self.endpoint}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _command(self, name: str, /, **arguments: object) -> Any:
        body = json.dumps({"command": name, "arguments": arguments})
        with self._lock:
            try:
                self._connection.request("POST", _PATH, body, _JSON)
                response = self._connection.getresponse()
                answer = json.loads(response.read())
            except BaseException:
                # A connection with a half-read answer is of no more use; the next command makes a new one.
                self._connection.close()
                raise
        if response.status != _OK:
            raise ValueError(answer["error"])
        return answer["result"]
