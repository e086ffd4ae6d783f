"""The Kafka broker as a program: on the port that it is given, with a label for each of its addresses."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.servers.java import free_port
from tests.servers.kafka_broker import find_broker


@pytest.fixture(autouse=True)
def _broker() -> None:
    if reason := find_broker().reason:
        pytest.skip(reason)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.servers", "kafka", "--exit-with-parent", *arguments]


def test_it_listens_on_the_port_labels_its_addresses_and_names_the_demo(tmp_path: Path) -> None:
    port = free_port()
    arguments = command("--port", str(port), "--folder", str(tmp_path))
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == f"listening on 127.0.0.1:{port}\n"
            lines = [program.stdout.readline() for _ in range(5)]
            assert AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}).list_topics(timeout=10).brokers
        finally:
            program.stdin.close()
            program.stdout.read()
    assert lines[0] == f"# kafka.bootstrap.servers, in plain text: 127.0.0.1:{port}\n"
    assert re.fullmatch(r"# .*SASL_PLAINTEXT, user shop, password shop-secret: 127\.0\.0\.1:\d+\n", lines[1])
    assert re.fullmatch(rf"# .*SSL, with the certificates in {tmp_path}/certificates: 127\.0\.0\.1:\d+\n", lines[2])
    assert lines[3] == f"# try it in another terminal: ./dev demo kafka --bootstrap 127.0.0.1:{port}\n"
    assert lines[4] == f"export KAFKA_BOOTSTRAP_SERVERS=127.0.0.1:{port}\n"
    assert program.returncode == 0
    # Its data name their ports: another one is refused, not ignored.
    arguments = command("--port", str(free_port()), "--folder", str(tmp_path))
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, stdin=subprocess.PIPE)
    assert done.returncode == 1
    assert f"are of a broker on 127.0.0.1:{port}" in done.stderr


def test_a_port_that_is_taken_is_refused_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            command("--port", str(port)), capture_output=True, text=True, check=False, stdin=subprocess.PIPE
        )
    assert done.returncode == 1
    assert done.stderr == f"127.0.0.1:{port}: Address already in use. Choose another port, or 0 for a free one.\n"
