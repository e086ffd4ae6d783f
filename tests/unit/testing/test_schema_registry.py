"""The schema registry for tests."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler

from connectors.testing.schema_registry import bound_server


def test_no_two_registries_of_a_process_have_one_address() -> None:
    ports = set()
    for count in range(1, 1501):  # without care, some port comes twice among so many
        with bound_server("127.0.0.1", 0, BaseHTTPRequestHandler) as server:
            ports.add(server.server_port)
        assert len(ports) == count
