"""The metrics endpoint with clients and names that mean harm: the driver stays as it is, and others are answered."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from connectors.observe.lag import Measurement, PartitionLag, SourceMeasurement, SpoolMeasurement
from connectors.observe.prometheus import Exporter
from tests.support.hostile_answers import samples_of

MOST_THREADS = 33
"""Of the server: its own, and one for each client that it answers at a time."""


def measurement(name: str) -> Measurement:
    spool = SpoolMeasurement(name, (name,), 1, 2, 3, 4, 5, 6)
    sources = (
        SourceMeasurement(name, 1, 2, 3, {name: PartitionLag(2, 3)}),
        SourceMeasurement("spool", 1, 2, 3, {name: PartitionLag(2, 3)}, spool),
    )
    return Measurement(1_700_000_000_000, f"id of {name}", "run", name, 3, 6, 250, 8.0, sources)


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    served = Exporter(0)
    served.update(measurement("good"))
    yield served
    served.close()


def scrape(exporter: Exporter, accept: str = "application/openmetrics-text") -> str:
    request = urllib.request.Request(exporter.url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as response:
        return str(response.read().decode())


def connect(exporter: Exporter, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", int(exporter.url.split(":")[2].split("/")[0]))))


def threads() -> int:
    return threading.active_count()


@pytest.mark.parametrize(
    "name",
    [
        '"',
        "\\",
        "a\nb",
        "a\n# EOF\nx",
        '"} 1\nconnectors_rows_total{query="good',
        "\r\u2028\x85",
        "\0",
        "\ud800",
        "{}=",
    ],
)
@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
def test_no_name_of_a_query_topic_or_spool_changes_the_metrics_of_another(
    exporter: Exporter, name: str, accept: str
) -> None:
    before = scrape(exporter, accept)
    exporter.update(measurement(name))
    text = scrape(exporter, accept)
    for line in before.splitlines():
        assert line in text
    if accept != "text/plain":
        queries = {labels["query"] for _, labels, _ in samples_of(text)}
        assert queries == {"good", name.encode(errors="backslashreplace").decode()}


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET /metrics HTTP/1.1\r\nX: y\r\n"], ids=["", "line", "header"])
def test_clients_that_say_nothing_more_take_few_threads_and_the_next_one_is_answered(
    exporter: Exporter, said: bytes
) -> None:
    before = threads()
    with ExitStack() as stack:
        for _ in range(300):
            connect(exporter, stack).sendall(said)
        began = time.monotonic()
        assert 'query="good"' in scrape(exporter)
        assert time.monotonic() - began < 5
        deadline = time.monotonic() + 10
        while threads() - before > MOST_THREADS and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threads() - before <= MOST_THREADS
    assert 'query="good"' in scrape(exporter)


def test_a_client_that_says_nothing_is_cut_off(exporter: Exporter) -> None:
    with ExitStack() as stack:
        silent = connect(exporter, stack)
        silent.settimeout(20)
        silent.sendall(b"GET /")
        assert silent.recv(1) == b""


def test_a_request_without_end_is_refused_and_not_stored(exporter: Exporter, capfd: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        endless = connect(exporter, stack)
        endless.settimeout(20)
        with pytest.raises(OSError):  # noqa: PT011 - a reset, or a broken pipe
            endless.sendall(b"A" * (200 << 20))
    assert 'query="good"' in scrape(exporter)
    assert capfd.readouterr().err == ""


def test_many_headers_and_odd_requests_are_answered_and_forge_no_line(
    exporter: Exporter, capfd: pytest.CaptureFixture[str]
) -> None:
    odd = [
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\xff\xfe\x1b[2J\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nx",
        b"GET /?name[]=" + b"a&name[]=" * 5000 + b" HTTP/1.0\r\n\r\n",
        b"GET http://[ HTTP/1.0\r\n\r\n",
    ]
    with ExitStack() as stack:
        for each in odd:
            client = connect(exporter, stack)
            client.settimeout(20)
            client.sendall(each)
            assert client.recv(100), each[:30]
    assert 'query="good"' in scrape(exporter)
    assert "\x1b" not in capfd.readouterr().err
