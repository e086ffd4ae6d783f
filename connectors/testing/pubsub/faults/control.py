"""The knobs of a Pub/Sub server in another process: a method of its own on the same port, with JSON as bytes.

Request: ``{"command": "jump", "arguments": {"seconds": 60}}``. Answer: ``{"result": null}``, or the status
INVALID_ARGUMENT with the reason. The names are those of `PubSubKnobs`.
"""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Self

import grpc

from connectors.testing.pubsub.faults.commands import PubSubCommands
from connectors.testing.pubsub.faults.knobs import PubSubKnobs

__all__ = ["PubSubControl", "control_handler"]

_SERVICE = "connectors.testing.PubSubControl"
_METHOD = "Command"
_UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


def control_handler(commands: PubSubCommands) -> grpc.GenericRpcHandler[bytes, bytes]:
    """The handler that runs the commands of `PubSubControl`."""

    def command(request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            call = json.loads(request)
            result = commands.run(str(call["command"]), dict(call["arguments"]))
        except (ValueError, KeyError) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return json.dumps({"result": result}).encode()

    return grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: grpc.unary_unary_rpc_method_handler(command)})


class PubSubControl(PubSubKnobs):
    """The knobs of a server by its endpoint; a context manager that closes its channel.

    Args:
        endpoint: ``HOST:PORT`` of a `PubSubServer`.
        timeout: real seconds that a command may take.
    """

    def __init__(self, endpoint: str, timeout: float = 60.0) -> None:
        self.endpoint = endpoint
        self._timeout = timeout
        self._channel = grpc.insecure_channel(endpoint, options=_UNLIMITED)
        self._call = self._channel.unary_unary(f"/{_SERVICE}/{_METHOD}", bytes, bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _command(self, name: str, /, **arguments: object) -> Any:
        request = json.dumps({"command": name, "arguments": arguments}).encode()
        try:
            # The server may still be starting, in the background of a shell.
            answer = self._call(request, timeout=self._timeout, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise ValueError(error.details()) from None
            raise
        return json.loads(answer)["result"]
