"""Ports for servers that are started a moment after their port was chosen."""

from __future__ import annotations

from pathlib import Path

from tests.servers.java import free_port, free_ports

_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_a_free_port_is_none_that_the_kernel_gives_to_a_connection_meanwhile() -> None:
    lowest, highest = (int(word) for word in _GIVEN.read_text().split())
    assert not any(lowest <= free_port() <= highest for _ in range(200))


def test_free_ports_are_different() -> None:
    assert len(set(free_ports(500))) == 500
