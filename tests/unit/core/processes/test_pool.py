"""Pooled clients: who gets them, and when they are closed."""

from __future__ import annotations

import threading

from connectors.core.processes.pool import Pool
from tests.support.waiting import wait_for


class Clients:
    """Clients that are names; remembers which were closed."""

    def __init__(self, most: int = 4, idle_seconds: float = 600.0) -> None:
        self.closed: list[str] = []
        self.pool: Pool[str, str] = Pool(self.closed.append, most, idle_seconds)

    def use(self, key: str) -> bool:
        """Whether a task with these settings found a client."""
        found = self.pool.acquire(key)
        self.pool.release(key, found or f"client of {key}")
        return found is not None


def test_tasks_that_take_turns_find_their_clients_again() -> None:
    clients = Clients()
    assert [clients.use(key) for key in "abab"] == [False, False, True, True]
    assert clients.closed == []


def test_a_client_in_use_is_nobody_else_s() -> None:
    clients = Clients()
    clients.use("a")
    assert clients.pool.acquire("a") == "client of a"
    assert clients.pool.acquire("a") is None


def test_of_too_many_the_one_used_longest_ago_is_closed() -> None:
    clients = Clients(most=2)
    for key in "abac":
        clients.use(key)
    assert clients.closed == ["client of b"]
    assert [clients.use(key) for key in "ac"] == [True, True]


def test_a_second_client_of_a_key_closes_the_first() -> None:
    clients = Clients()
    for name in ("first", "second"):
        clients.pool.release("a", name)
    assert clients.closed == ["first"]


def reapers() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "idle-clients"}


def test_clients_that_nobody_wants_are_closed_by_a_thread_that_ends_and_comes_again() -> None:
    clients = Clients(idle_seconds=0.05)
    others = reapers()
    for round_number in (1, 2):
        clients.use("a")
        clients.use("b")
        wait_for(lambda all_closed=2 * round_number: len(clients.closed) == all_closed and reapers() <= others)
    assert sorted(clients.closed) == ["client of a"] * 2 + ["client of b"] * 2


def test_close_closes_all() -> None:
    clients = Clients()
    for key in "ab":
        clients.use(key)
    clients.pool.close()
    assert clients.closed == ["client of a", "client of b"]
    assert not clients.use("a")
