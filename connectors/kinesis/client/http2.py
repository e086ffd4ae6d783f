"""An HTTP/2 client by h2 on asyncio, for requests whose responses last minutes: many on one connection.

Each response has its own flow-control window, so an unread response holds the service back. Measurements:
``docs/adr/0002-efo-transport.md``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self, cast
from urllib.parse import urlsplit

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from connectors.core.aws.errors import certificate_error
from connectors.core.errors import ServiceUnavailableError

_WINDOW: Final = 4 << 20
"""Bytes that the service may send ahead on one stream; an event has up to 1 MB of data, 1.4 MB in base64."""
_CONNECTION_WINDOW: Final = 1 << 30
"""Streams hold themselves back; the connection must not, or a slow one would stop the others."""
_FRAME_BYTES: Final = 1 << 20
"""Fewer and larger frames cost less, where the service makes them."""
_MOST_STREAMS: Final = 100
"""On one connection; the service may allow fewer."""
_CONNECT_SECONDS: Final = 10.0


class Response:
    """The response to one request; a context that resets the stream at its end.

    Waiting raises a `ServiceUnavailableError` when the connection was cut, or the stream reset.
    """

    def __init__(self, connection: _Connection, stream_id: int) -> None:
        self._connection = connection
        self._stream_id = stream_id
        self._pieces: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._owed = 0
        self._over = False
        self._error: ServiceUnavailableError | None = None
        self.status = 0
        self.headers: dict[str, str] = {}
        """As the status, known once `begin` has returned; names are in lower case."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.leave(self._stream_id)

    def retire_connection(self) -> None:
        """Let no new request use this connection: a load balancer that has forgotten one says nothing."""
        self._connection.retire()

    async def begin(self) -> None:
        while not self.status:
            await self._wait()

    async def read(self) -> bytes:
        """Return what has arrived since the last call, after a wait if that is nothing; no bytes at the end."""
        while not self._pieces:
            if self._over and self._error is None:
                return b""
            await self._wait()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._owed += len(data)
        if self._owed >= _WINDOW // 2 and not self._over:
            self._connection.open_window(self._owed, self._stream_id)
            self._owed = 0
        return data

    async def _wait(self) -> None:
        if self._over:
            raise self._error or _cut("the response ended before it began")
        self._changed.clear()
        await self._changed.wait()

    def began(self, headers: Mapping[str, str]) -> None:
        self.status = int(headers.get(":status", 0))
        self.headers = {name.lower(): value for name, value in headers.items()}
        self._changed.set()

    def received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._changed.set()

    def ended(self, error: ServiceUnavailableError | None) -> None:
        if not self._over:
            self._over, self._error = True, error
            self._changed.set()


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._responses: dict[int, Response] = {}
        self._owed = 0
        self.is_open = True
        self._is_retired = False
        self._gone = asyncio.Event()
        self._transport: asyncio.Transport

    @property
    def has_room(self) -> bool:
        allowed = min(self._http.remote_settings.max_concurrent_streams, _MOST_STREAMS)
        return self.is_open and not self._is_retired and len(self._responses) < allowed

    def retire(self) -> None:
        """Take no more requests, and close with the last response that is under way."""
        self._is_retired = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_retired and not self._responses and self.is_open:
            self._close(_cut("it was given up"))
            self._transport.abort()  # nobody may be there to take what is still to be sent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._http.initiate_connection()
        self._http.update_settings(
            {
                SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW,
                SettingCodes.MAX_FRAME_SIZE: _FRAME_BYTES,
                SettingCodes.ENABLE_PUSH: 0,
            }
        )
        self._http.increment_flow_control_window(_CONNECTION_WINDOW)
        self._flush()

    def send(self, headers: list[tuple[str, str]], body: bytes) -> Response:
        stream_id = self._http.get_next_available_stream_id()
        response = self._responses[stream_id] = Response(self, stream_id)
        self._http.send_headers(stream_id, headers)
        self._http.send_data(stream_id, body, end_stream=True)
        self._flush()
        return response

    def leave(self, stream_id: int) -> None:
        if self._responses.pop(stream_id, None) is not None and self.is_open:
            self._http.reset_stream(stream_id, ErrorCodes.CANCEL)
            self._flush()
            self._close_if_done()

    def open_window(self, size: int, stream_id: int) -> None:
        if stream_id in self._responses and self.is_open:
            self._http.increment_flow_control_window(size, stream_id)
            self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._http.receive_data(data):
                self._take(event)
        except ProtocolError as error:
            self._close(_cut(f"it does not follow HTTP/2: {error}"))
            return
        if self._owed >= _CONNECTION_WINDOW // 2:
            self._http.increment_flow_control_window(self._owed)
            self._owed = 0
        self._flush()

    def _take(self, event: Event) -> None:
        match event:
            case DataReceived(stream_id=int(stream_id), data=data, flow_controlled_length=int(length)):
                self._owed += length
                if (response := self._responses.get(stream_id)) is not None and data:
                    response.received(bytes(data))
            case ResponseReceived(stream_id=int(stream_id), headers=headers):
                if (response := self._responses.get(stream_id)) is not None:
                    response.began({str(name): str(value) for name, value in headers or []})
            case StreamEnded(stream_id=int(stream_id)):
                self._end(stream_id, None)
            case StreamReset(stream_id=int(stream_id), error_code=code):
                self._end(stream_id, _cut(f"the stream was reset, with the code {code}"))
            case ConnectionTerminated(error_code=code):
                self._close(_cut(f"the service ends the connection, with the code {code}"))
            case _:
                pass

    def _end(self, stream_id: int, error: ServiceUnavailableError | None) -> None:
        if (response := self._responses.pop(stream_id, None)) is not None:
            response.ended(error)
            self._close_if_done()

    def connection_lost(self, error: Exception | None) -> None:
        self._close(_cut("the connection was cut" + ("" if error is None else f": {error}")))
        self._gone.set()

    def _close(self, error: ServiceUnavailableError) -> None:
        self.is_open = False
        for stream_id in list(self._responses):
            self._end(stream_id, error)
        self._transport.close()

    async def close(self) -> None:
        self._close(_cut("it was closed here"))
        self._transport.abort()
        await self._gone.wait()

    def _flush(self) -> None:
        if self.is_open and (data := self._http.data_to_send()):
            self._transport.write(data)


class Http2Client:
    """Sends requests, on as many connections as they need; belongs to one event loop."""

    def __init__(self) -> None:
        self._connections: dict[tuple[str, str], list[_Connection]] = {}
        self._connecting = asyncio.Lock()

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, certificates: str | None = None
    ) -> Response:
        """Send a request with a body of at most 16 kB; the response is a context.

        ``certificates`` is a file with the authorities that are trusted; None for the system's own.

        Raises:
            CredentialsError: the certificate of the service is not trusted, or there is no file of authorities.
            ServiceUnavailableError: it cannot be reached, or does not speak HTTP/2, which ``http:`` takes for granted.
        """
        parts = urlsplit(url)
        connection = await self._connection(parts.scheme, parts.netloc, certificates)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        pseudo = [(":method", "POST"), (":scheme", parts.scheme), (":authority", parts.netloc), (":path", path)]
        rest = [(name.lower(), value) for name, value in headers.items() if name.lower() not in {"host", "connection"}]
        return connection.send(pseudo + rest, body)

    async def close(self) -> None:
        connections = [connection for pool in self._connections.values() for connection in pool]
        self._connections.clear()
        for connection in connections:
            await connection.close()

    async def _connection(self, scheme: str, authority: str, certificates: str | None) -> _Connection:
        async with self._connecting:
            pool = [connection for connection in self._connections.get((scheme, authority), []) if connection.is_open]
            self._connections[scheme, authority] = pool
            for connection in pool:
                if connection.has_room:
                    return connection
            pool.append(await _connect(scheme, authority, certificates))
            return pool[-1]


async def _connect(scheme: str, authority: str, certificates: str | None) -> _Connection:
    parts = urlsplit(f"{scheme}://{authority}")
    context = _tls(certificates) if scheme == "https" else None
    port = parts.port or (443 if context is not None else 80)
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            loop = asyncio.get_running_loop()
            transport, connection = await loop.create_connection(_Connection, parts.hostname or "", port, ssl=context)
    except ssl.SSLCertVerificationError as error:
        raise certificate_error(
            f"SubscribeToShard failed: the certificate is not accepted: {error.verify_message}", authority
        ) from None
    except (OSError, TimeoutError) as error:
        raise _cut(f"there is no connection to {authority}: {str(error) or 'no response in time'}") from None
    tls = transport.get_extra_info("ssl_object")
    if tls is not None and tls.selected_alpn_protocol() != "h2":
        await connection.close()
        raise _cut(f"{authority} does not speak HTTP/2; a proxy may stand between")
    return connection


def _tls(certificates: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=certificates)
    except OSError as error:
        what = f"The file of trusted authorities cannot be read: {error.strerror or error}"
        raise certificate_error(what, str(certificates)) from None
    context.set_alpn_protocols(["h2"])
    return context


def _cut(what: str) -> ServiceUnavailableError:
    return ServiceUnavailableError("KINESIS_SUBSCRIPTION_CUT", f"The connection of a subscription broke: {what}")
