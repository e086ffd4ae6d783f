"""A proxy in front of a broker that holds back requests of a transaction, and delivers them late.

    with LateRequests() as proxy, KafkaBroker(proxy=proxy.endpoint) as broker:
        proxy.lead_to(broker.proxied_endpoint)
        hold = proxy.hold(Request.COMMIT, "kafka_py-query-0")
        ...                                  # a client of proxy.endpoint sends its commit, and gets no response
        hold.deliver()                       # the broker receives it now, over a connection of its own

It counts the bytes of fetched records too, which show where a consumer reads from.

It reads as much of Kafka's protocol as it needs: the length and the header of each request, which transactional id the
request has, and the errors of the responses to those that it delivers late.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from confluent_kafka import KafkaError

_HOST: Final = "127.0.0.1"
_END_TXN: Final = 26
_FETCH: Final = 1
_CONNECT_SECONDS: Final = 60.0
_RESPONSE_SECONDS: Final = 15.0
_FIRST_FLEXIBLE: Final = {0: 9, 22: 2, 24: 3, 25: 3, 26: 3, 28: 3}
"""The first version of each request whose strings and lists have the compact form."""


class Request(enum.Enum):
    """A request of a transaction: its API key, and for the end of one whether it commits."""

    COMMIT = (_END_TXN, True)
    ABORT = (_END_TXN, False)
    ADD_PARTITIONS = (24, None)
    PRODUCE = (0, None)
    ADD_OFFSETS = (25, None)
    OFFSET_COMMIT = (28, None)
    INIT_PRODUCER = (22, None)

    @property
    def key(self) -> int:
        key: int = self.value[0]
        return key


@dataclass(frozen=True)
class _Frame:
    """A request as it was sent, without its length."""

    content: bytes

    @property
    def key(self) -> int:
        return int.from_bytes(self.content[:2], "big")

    @property
    def version(self) -> int:
        return int.from_bytes(self.content[2:4], "big")

    @property
    def correlation(self) -> bytes:
        return self.content[4:8]

    def is_from(self, transactional_id: str) -> bool:
        """Return whether it names this id, which no other text of the tests contains."""
        return self.key in _FIRST_FLEXIBLE and transactional_id.encode() in self.content

    def is_a(self, request: Request) -> bool:
        key, commits = request.value
        if self.key != key:
            return False
        # The last field of EndTxn says it, before the tags of the compact form.
        last = self.content[-2 if self.version >= _FIRST_FLEXIBLE[key] else -1] if commits is not None else 0
        return commits is None or bool(last) == commits


@dataclass(eq=False)
class Hold:
    """Requests of one kind and one transactional id that are held; made by `LateRequests.hold`.

    Attributes:
        most: how many are held; later ones pass.
        cuts: whether the client's connection is closed; else its request stays without a response.
        errors: what the broker answered to each that was delivered, by the names of Kafka's errors.
    """

    proxy: LateRequests
    request: Request
    transactional_id: str
    most: int
    cuts: bool
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._frames: list[_Frame] = []
        self._taken = 0
        self._lock = threading.Lock()
        self._delivery = threading.Lock()
        self.is_open = True
        self.holds = threading.Event()
        """Set once a request is held."""

    @property
    def count(self) -> int:
        """How many were held so far."""
        return self._taken

    def takes(self, frame: _Frame) -> bool:
        """Hold a request, if it is one of these."""
        with self._lock:
            wanted = self.is_open and self._taken < self.most
            if not wanted or not frame.is_a(self.request) or not frame.is_from(self.transactional_id):
                return False
            self._taken += 1
            self._frames.append(frame)
        self.holds.set()
        return True

    def close(self) -> None:
        """Hold nothing more; what is held stays."""
        with self._lock:
            self.is_open = False

    def deliver(self) -> list[str]:
        """Send what is held to the broker, in its order; return its answers, once they are there."""
        with self._delivery:
            with self._lock:
                frames, self._frames = self._frames, []
            new = [self.proxy.deliver(frame.content) for frame in frames]
            self.errors += new
        return new


@dataclass(eq=False)
class Trigger:
    """Something to do once the broker has answered a request, before the client receives that response."""

    request: Request
    transactional_id: str
    act: Callable[[], None]
    fired: threading.Event = field(default_factory=threading.Event)

    def fires_at(self, frame: _Frame) -> bool:
        return not self.fired.is_set() and frame.is_a(self.request) and frame.is_from(self.transactional_id)


class LateRequests:
    """The proxy; a context manager that closes its connections."""

    def __init__(self) -> None:
        self._listener = socket.create_server((_HOST, 0))
        self.endpoint = f"{_HOST}:{self._listener.getsockname()[1]}"
        self._broker: tuple[str, int] | None = None
        self._sockets: set[socket.socket] = set()
        self._holds: list[Hold] = []
        self._triggers: list[Trigger] = []
        self._closed = False
        self.fetched_bytes = 0
        """Of all responses to fetches so far."""
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        _close(self._listener)
        for connection in [*self._sockets]:
            _close(connection)

    def lead_to(self, broker: str) -> None:
        """Set the address of the broker; it is the broker's listener that advertises `endpoint`."""
        host, _, port = broker.rpartition(":")
        self._broker = (host, int(port))

    def hold(self, request: Request, transactional_id: str, *, most: int = 1, cuts: bool = True) -> Hold:
        """Hold the next requests of a kind."""
        hold = Hold(self, request, transactional_id, most, cuts)
        self._holds = [*(each for each in self._holds if each.is_open), hold]
        return hold

    def once_answered(self, request: Request, transactional_id: str, act: Callable[[], None]) -> Trigger:
        """Call ``act`` once the broker has answered such a request; the client waits for its response meanwhile."""
        trigger = Trigger(request, transactional_id, act)
        self._triggers = [*(each for each in self._triggers if not each.fired.is_set()), trigger]
        return trigger

    def deliver(self, content: bytes) -> str:
        """Send a request over a new connection; return the name of the error in its response."""
        frame, give_up_at = _Frame(content), time.monotonic() + _CONNECT_SECONDS
        while True:
            try:
                with self._connect(_RESPONSE_SECONDS) as connection:
                    connection.sendall(struct.pack(">i", len(content)) + content)
                    response = _read_frame(connection)
            except OSError as error:
                if time.monotonic() > give_up_at:
                    return type(error).__name__
                time.sleep(0.1)  # the broker is down: the network goes on trying
                continue
            return "connection closed" if response is None else error_of(frame.key, frame.version, response)

    def _connect(self, timeout: float | None) -> socket.socket:
        if self._broker is None:
            raise ConnectionRefusedError("the proxy leads to no broker yet")
        connection = socket.create_connection(self._broker, _RESPONSE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(timeout)
        return connection

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                return
            try:
                broker = self._connect(None)
            except OSError:
                _close(client)
                continue
            _Connection(self, client, broker).start(self._sockets)

    def held_by(self, frame: _Frame) -> Hold | None:
        return next((hold for hold in self._holds if hold.takes(frame)), None)

    def act_on(self, frame: _Frame) -> None:
        for trigger in self._triggers:
            if trigger.fires_at(frame):
                trigger.fired.set()
                trigger.act()


class _Connection:
    """A client's connection and the one to the broker that belongs to it."""

    def __init__(self, proxy: LateRequests, client: socket.socket, broker: socket.socket) -> None:
        self._proxy, self._client, self._broker = proxy, client, broker
        self._sent: dict[bytes, _Frame] = {}

    def start(self, sockets: set[socket.socket]) -> None:
        sockets |= {self._client, self._broker}
        for target in (self._forward_requests, self._forward_responses):
            threading.Thread(target=self._run, args=(target, sockets), daemon=True).start()

    def _run(self, forward: Callable[[], None], sockets: set[socket.socket]) -> None:
        with contextlib.suppress(OSError):
            forward()
        for connection in (self._client, self._broker):
            sockets.discard(connection)
            _close(connection)

    def _forward_requests(self) -> None:
        while (content := _read_frame(self._client)) is not None:
            frame = _Frame(content)
            hold = self._proxy.held_by(frame)
            if hold is None:
                self._sent[frame.correlation] = frame
                self._broker.sendall(struct.pack(">i", len(content)) + content)
            elif hold.cuts:
                return

    def _forward_responses(self) -> None:
        while (content := _read_frame(self._broker)) is not None:
            if (frame := self._sent.pop(content[:4], None)) is not None:
                self._proxy.act_on(frame)
                self._proxy.fetched_bytes += len(content) if frame.key == _FETCH else 0
            self._client.sendall(struct.pack(">i", len(content)) + content)


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _read_frame(connection: socket.socket) -> bytes | None:
    """Return the next frame without its length; None at the end of the connection."""
    head = _read(connection, 4)
    return None if head is None else _read(connection, int.from_bytes(head, "big"))


def _read(connection: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = connection.recv(min(count, 1 << 16))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def error_of(key: int, version: int, response: bytes) -> str:
    """Return the name of the error in a response to one of these requests; of its first partition, if it has some."""
    fields = _Fields(response, compact=version >= _FIRST_FLEXIBLE[key])
    fields.skip(4)  # the correlation id
    fields.skip_tags()
    if key != 0:
        fields.skip(4)  # how long the client was throttled
    if key in {0, 24, 28}:  # topics, and in each its partitions
        if fields.length() == 0:
            return "no partition"
        fields.skip(fields.length(of_text=True))
        fields.length()
        fields.skip(4)
    code = fields.int16()
    return "NO_ERROR" if code == 0 else str(KafkaError(code).name())


class _Fields:
    """Reads the fields of a response in their order."""

    def __init__(self, content: bytes, *, compact: bool) -> None:
        self._content, self._compact, self._place = content, compact, 0

    def skip(self, count: int) -> None:
        self._place += count

    def skip_tags(self) -> None:
        """Skip the tags of a header; brokers send none here."""
        self.skip(1 if self._compact else 0)

    def int16(self) -> int:
        self._place += 2
        return int.from_bytes(self._content[self._place - 2 : self._place], "big", signed=True)

    def length(self, *, of_text: bool = False) -> int:
        """Read the length of a list or a string."""
        if not self._compact:
            size = 2 if of_text else 4
            self._place += size
            return int.from_bytes(self._content[self._place - size : self._place], "big", signed=True)
        number = shift = 0
        while True:
            byte = self._content[self._place]
            self._place += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number - 1
