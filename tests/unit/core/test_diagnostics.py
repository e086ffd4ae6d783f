"""Name, port and certificate of a server: each way in which they can be wrong has its own code."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.diagnostics import connect, look_at_checkpoint, look_up, split_address, tls_handshake
from connectors.core.errors import ConnectorError, OffsetError
from tests.servers.certificates import make_certificates
from tests.servers.java import free_port

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls") / "certificates")


def serve(listener: socket.socket, context: ssl.SSLContext | None) -> None:
    """Shake hands with whoever comes, until the listener is closed."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        try:
            if context is None:
                connection.sendall(b"220 no TLS here\r\n")
            else:
                connection = context.wrap_socket(connection, server_side=True)
            connection.settimeout(5)
            connection.recv(1)
        except OSError:
            pass  # the client went away, which is what some tests are about
        connection.close()


def server(context: ssl.SSLContext | None) -> Iterator[int]:
    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener, context))
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@pytest.fixture
def plain() -> Iterator[int]:
    yield from server(None)


@pytest.fixture
def tls(certificates: Path) -> Iterator[int]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    yield from server(context)


@pytest.fixture
def mutual_tls(certificates: Path) -> Iterator[int]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "ca.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    yield from server(context)


def code_of(error: pytest.ExceptionInfo[ConnectorError]) -> str:
    assert error.value.action
    return error.value.code


def trusting(certificates: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates / "ca.pem"))


@pytest.mark.parametrize(
    ("address", "found"),
    [("a.b", ("a.b", 9)), ("a.b:80", ("a.b", 80)), ("[::1]:80", ("::1", 80)), ("[::1]", ("::1", 9))],
)
def test_an_address_is_split(address: str, found: tuple[str, int]) -> None:
    assert split_address(address, 9) == found


def test_an_unknown_name_is_reported() -> None:
    assert "127.0.0.1" in look_up("localhost", 80)
    with pytest.raises(ConnectorError) as error:
        look_up("nowhere.invalid", 80)
    assert code_of(error) == "NAME_UNKNOWN"


def test_a_port_where_nobody_listens_is_reported(plain: int) -> None:
    assert "accepts" in connect(HOST, plain)
    with pytest.raises(ConnectorError) as error:
        connect(HOST, free_port())
    assert code_of(error) == "TCP_NO_CONNECTION"


def test_a_good_certificate_is_well(tls: int, certificates: Path) -> None:
    assert "TLS" in tls_handshake(HOST, tls, trusting(certificates))


def test_a_certificate_of_an_unknown_authority_is_reported(tls: int) -> None:
    with pytest.raises(ConnectorError) as error:
        tls_handshake(HOST, tls, ssl.create_default_context())
    assert code_of(error) == "TLS_CERTIFICATE"


def test_a_server_without_tls_is_reported(plain: int) -> None:
    with pytest.raises(ConnectorError) as error:
        tls_handshake(HOST, plain, ssl.create_default_context())
    assert code_of(error) == "TLS_NOT_SPOKEN"


def test_a_missing_certificate_of_the_client_is_reported(mutual_tls: int, certificates: Path) -> None:
    with pytest.raises(ConnectorError) as error:
        tls_handshake(HOST, mutual_tls, trusting(certificates))
    assert code_of(error) == "TLS_CLIENT_CERTIFICATE"


def test_a_checkpoint_with_a_pipe_or_a_name_that_is_no_number_is_looked_at_without_waiting(tmp_path: Path) -> None:
    log = tmp_path / "offsets"
    log.mkdir()
    (log / "²").write_text("x")
    (log / "3").write_text('v1\n{}\n{"a":{"0":5},"v":1}')
    assert look_at_checkpoint(tmp_path, list) == [{"a": {"0": 5}, "v": 1}]
    os.mkfifo(log / "4")
    with pytest.raises(ConnectorError, match=r"CHECKPOINT_UNREADABLE.*no regular file"):
        look_at_checkpoint(tmp_path, list)
    (log / "4").unlink()
    (log / "4").write_text("v1\n{}\n{" + '"a":{' * 100_000)
    with pytest.raises(ConnectorError, match="CHECKPOINT_UNREADABLE"):
        look_at_checkpoint(tmp_path, list)


def offset_log(folder: Path, text: str) -> Path:
    """Write the offsets of one batch."""
    (folder / "offsets").mkdir(exist_ok=True)
    (folder / "offsets" / "7").write_text(text)
    return folder


@pytest.mark.parametrize(
    "text",
    [
        'v1\n{}\n{"a":{"0":5}}\n-\n{"v":1}\n17',
        'v2\n{"sourceMetadataInfo":{}}\n0:{"a":{"0":5}}\n1:-\n2:{"v":1}\n3:17',
        'v2\n{}\nshop_orders:{"a":{"0":5}}\nother:-\nv1:{"v":1}\n9:17',
    ],
    ids=["version 1", "numbers", "names"],
)
def test_the_offsets_of_each_version_of_sparks_log_are_read(tmp_path: Path, text: str) -> None:
    assert look_at_checkpoint(offset_log(tmp_path, text), list) == [{"a": {"0": 5}}, {"v": 1}]


def test_a_name_with_a_line_separator_of_unicode_is_part_of_its_offset(tmp_path: Path) -> None:
    assert look_at_checkpoint(offset_log(tmp_path, 'v2\n{}\n0:{"a\u2028b":1}'), list) == [{"a\u2028b": 1}]


@pytest.mark.parametrize("version", ["v3", "v17"])
def test_a_version_of_sparks_log_that_is_not_known_is_named(tmp_path: Path, version: str) -> None:
    with pytest.raises(OffsetError, match=rf"CHECKPOINT_VERSION.*version {version[1:]}\b"):
        look_at_checkpoint(offset_log(tmp_path, f'{version}\n{{}}\n0 {{"a":1}}'), list)


@pytest.mark.parametrize("text", ["", "{}", "1\n{}\n{}", "v0\n{}", 'v2\n{}\n{"v"}', "v2\n{}\n{"])
def test_a_file_that_is_no_log_of_spark_is_not_taken_for_a_new_query(tmp_path: Path, text: str) -> None:
    with pytest.raises(OffsetError, match="CHECKPOINT_UNREADABLE"):
        look_at_checkpoint(offset_log(tmp_path, text), list)
