"""HTTP/1.1 and HTTP/2 on the transports of asyncio, by h11 and h2."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import h11
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from connectors.testing.kinesis.exchange import Exchange, Handler, Request

__all__ = ["HttpConnection"]

_HTTP2_PREFACE = b"PRI * HTTP/2.0"
_MOST_STREAMS = 10_000
_RECEIVE_WINDOW = 16 << 20
_REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 500: b"Internal Server Error", 503: b"Unavailable"}


class HttpConnection(asyncio.Protocol):
    """A connection of a client; its first bytes tell the version of HTTP.

    Args:
        handler: gets the requests.
        connections: holds this one while it is open.
    """

    def __init__(self, handler: Handler, connections: set[HttpConnection]) -> None:
        self._handler = handler
        self._connections = connections
        self._first = b""
        self._version: _Http1 | _Http2 | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client."""
        if self._version is None:
            self._first += data
            if len(self._first) < len(_HTTP2_PREFACE) and _HTTP2_PREFACE.startswith(self._first):
                return
            http2 = self._first.startswith(_HTTP2_PREFACE)
            self._version = (_Http2 if http2 else _Http1)(self.transport, self._handler)
            data, self._first = self._first, b""
        self._version.receive(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the exchanges that are under way."""
        del error
        self._connections.discard(self)
        if self._version is not None:
            self._version.closed()


class _Http1:
    """HTTP/1.1: one request after the other."""

    def __init__(self, transport: asyncio.Transport, handler: Handler) -> None:
        self.transport = transport
        self._handler = handler
        self.connection = h11.Connection(h11.SERVER)
        self._exchange: _Http1Exchange | None = None
        self._request: h11.Request | None = None
        self._body: list[bytes] = []

    def receive(self, data: bytes) -> None:
        self.connection.receive_data(data)
        self.advance()

    def advance(self) -> None:
        """Handle what has come in, up to the end of a request; the rest waits for its answer."""
        try:
            while self._exchange is None and not self.transport.is_closing():
                event = self.connection.next_event()
                if event is h11.NEED_DATA:
                    if self.connection.they_are_waiting_for_100_continue:
                        self.write(h11.InformationalResponse(status_code=100, headers=[]))
                    return
                self._take(event)
        except h11.RemoteProtocolError:
            self.transport.abort()

    def _take(self, event: object) -> None:
        match event:
            case h11.Request():
                self._request, self._body = event, []
            case h11.Data():
                self._body.append(bytes(event.data))
            case h11.EndOfMessage() if self._request is not None:
                headers = {name.decode("ascii"): value.decode("latin-1") for name, value in self._request.headers}
                method, path = self._request.method.decode(), self._request.target.decode()
                self._exchange = _Http1Exchange(self)
                self._handler(Request(method, path, headers, b"".join(self._body)), self._exchange)
            case _:
                self.transport.close()

    def write(self, event: h11.Event) -> None:
        parts = self.connection.send_with_data_passthrough(event)
        if parts and not self.transport.is_closing():
            self.transport.writelines(parts)

    def finished(self) -> None:
        """The answer is complete: go on with the next request."""
        self._exchange = None
        if self.connection.our_state is h11.MUST_CLOSE:
            self.transport.close()
            return
        self.connection.start_next_cycle()
        # Not at once: a handler that answers at once is still on the stack.
        asyncio.get_running_loop().call_soon(self.advance)

    def closed(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None and exchange.when_closed is not None:
            exchange.when_closed()


class _Http1Exchange(Exchange):
    def __init__(self, http: _Http1) -> None:
        super().__init__()
        self._http = http

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._http.write(h11.Response(status_code=status, headers=pairs, reason=_REASONS.get(status, b"")))

    def send(self, data: bytes) -> None:
        if data:
            self._http.write(h11.Data(data=data))

    def finish(self) -> None:
        self._http.write(h11.EndOfMessage())
        self._http.finished()

    def cut(self) -> None:
        _cut(self._http.transport)

    def unsent_bytes(self) -> int:
        return self._http.transport.get_write_buffer_size()


class _Http2:
    """HTTP/2: many requests at a time, each with its own window."""

    def __init__(self, transport: asyncio.Transport, handler: Handler) -> None:
        self.transport = transport
        self._handler = handler
        self.connection = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.connection.initiate_connection()
        self.connection.update_settings(
            {SettingCodes.MAX_CONCURRENT_STREAMS: _MOST_STREAMS, SettingCodes.INITIAL_WINDOW_SIZE: _RECEIVE_WINDOW}
        )
        self.exchanges: dict[int, _Http2Exchange] = {}
        self._requests: dict[int, tuple[dict[str, str], list[bytes]]] = {}
        self.flush()

    def receive(self, data: bytes) -> None:
        try:
            for event in self.connection.receive_data(data):
                self._take(event)
        except ProtocolError:
            self.flush()
            self.transport.close()
            return
        self.flush()

    def _take(self, event: Event) -> None:
        match event:
            case RequestReceived(stream_id=int(stream_id), headers=headers):
                self._requests[stream_id] = {str(name): str(value) for name, value in headers or []}, []
            case DataReceived(stream_id=int(stream_id), data=data, flow_controlled_length=int(length)):
                self.connection.acknowledge_received_data(length, stream_id)
                if stream_id in self._requests:
                    self._requests[stream_id][1].append(bytes(data or b""))
            case StreamEnded(stream_id=int(stream_id)) if stream_id in self._requests:
                named, body = self._requests.pop(stream_id)
                exchange = self.exchanges[stream_id] = _Http2Exchange(self, stream_id)
                request = Request(named.get(":method", ""), named.get(":path", ""), named, b"".join(body))
                self._handler(request, exchange)
            case WindowUpdated() | RemoteSettingsChanged():
                for exchange in list(self.exchanges.values()):
                    exchange.push()
            case StreamReset(stream_id=int(stream_id)):
                self._requests.pop(stream_id, None)
                self._drop(stream_id)
            case ConnectionTerminated():
                self.transport.close()
            case _:
                pass

    def flush(self) -> None:
        data = self.connection.data_to_send()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def _drop(self, stream_id: int) -> None:
        exchange = self.exchanges.pop(stream_id, None)
        if exchange is not None and exchange.when_closed is not None:
            exchange.when_closed()

    def closed(self) -> None:
        for stream_id in list(self.exchanges):
            self._drop(stream_id)


class _Http2Exchange(Exchange):
    def __init__(self, http: _Http2, stream_id: int) -> None:
        super().__init__()
        self._http = http
        self._stream_id = stream_id
        self._waiting = bytearray()
        self._finished = False

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        if self._stream_id not in self._http.exchanges:
            return
        self._http.connection.send_headers(self._stream_id, [(":status", str(status)), *headers.items()])
        self._http.flush()

    def send(self, data: bytes) -> None:
        self._waiting += data
        self.push()

    def finish(self) -> None:
        self._finished = True
        self.push()

    def push(self) -> None:
        """Send as much as the client's window takes."""
        connection = self._http.connection
        if self._stream_id not in self._http.exchanges:
            return
        while self._waiting:
            window = connection.local_flow_control_window(self._stream_id)
            size = min(window, connection.max_outbound_frame_size, len(self._waiting))
            if size <= 0:
                break
            connection.send_data(self._stream_id, bytes(self._waiting[:size]))
            del self._waiting[:size]
        if self._finished and not self._waiting:
            del self._http.exchanges[self._stream_id]
            connection.end_stream(self._stream_id)
        self._http.flush()

    def cut(self) -> None:
        _cut(self._http.transport)

    def unsent_bytes(self) -> int:
        return len(self._waiting) + self._http.transport.get_write_buffer_size()


def _cut(transport: asyncio.Transport) -> None:
    """Close without the end that HTTP asks for; at once, when the client does not read."""
    if transport.get_write_buffer_size():
        transport.abort()
    else:
        transport.close()
