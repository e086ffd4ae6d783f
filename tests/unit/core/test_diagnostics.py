"""Name, port and certificate of a server: each way in which they can be wrong has its own code."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.diagnostics import Finding, Outcome, reach, run_checks, split_address
from connectors.core.errors import ConnectorError
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


def code_of(error: pytest.ExceptionInfo[ConnectorError]) -> str:
    assert error.value.action
    return error.value.code


@pytest.mark.parametrize(
    ("address", "found"),
    [("a.b", ("a.b", 9)), ("a.b:80", ("a.b", 80)), ("[::1]:80", ("::1", 80)), ("[::1]", ("::1", 9))],
)
def test_an_address_is_split(address: str, found: tuple[str, int]) -> None:
    assert split_address(address, 9) == found


def test_an_unknown_name_and_a_port_where_nobody_listens_are_reported(plain: int) -> None:
    assert "accepts" in reach("localhost", plain)
    with pytest.raises(ConnectorError) as error:
        reach("nowhere.invalid", 80)
    assert code_of(error) == "NAME_UNKNOWN"
    with pytest.raises(ConnectorError) as error:
        reach(HOST, free_port())
    assert code_of(error) == "TCP_NO_CONNECTION"


def test_a_certificate_of_a_trusted_authority_alone_is_accepted(
    tls: int, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConnectorError) as error:
        reach(HOST, tls, tls=True)
    assert code_of(error) == "TLS_CERTIFICATE"
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.pem"))
    assert "TLS" in reach(HOST, tls, tls=True)


def test_a_server_without_tls_is_reported(plain: int) -> None:
    with pytest.raises(ConnectorError) as error:
        reach(HOST, plain, tls=True)
    assert code_of(error) == "TLS_NOT_SPOKEN"


def test_a_returned_error_is_a_warning_and_what_follows_a_raised_one_is_skipped() -> None:
    def results() -> Iterator[str | ConnectorError]:
        yield "seen"
        yield ConnectorError("SLOW", "it is slow", "here", "Wait.")
        raise PermissionError(errno.EACCES, "Permission denied", "/spools/orders/spool.json")

    first, second, third, fourth = run_checks("spool", ("a", "b", "c", "d"), results())
    assert first == Finding("spool", "a", Outcome.OK, "seen")
    assert second == Finding("spool", "b", Outcome.WARNING, "it is slow (here)", "Wait.", "SLOW")
    assert (third.outcome, third.code, bool(third.fix)) == (Outcome.FAILURE, "SYSTEM_REFUSES", True)
    assert "Permission denied: '/spools/orders/spool.json'" in third.seen
    assert fourth == Finding("spool", "d", Outcome.SKIPPED, "because 'c' failed")
