"""Where simulated spools lie: a bucket in memory that answers late, twice or not at all, and a disk that is stepped.

Both are below the spool's own stores: `ObjectStore` talks to the bucket by the calls of obstore, `LocalStore` to the
disk by those of `Disk`.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from obstore import exceptions

from connectors.spool.store.disk import Disk
from tests.support.simulation.primitives import scheduler

_TIMEOUT = 15.0
_FASTEST, _SLOWEST = 0.001, 0.03
_LATEST = 40.0
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    tag: str
    written: float


class _Answer:
    """What obstore returns for a get."""

    def __init__(self, found: _Object, data: bytes) -> None:
        self.meta = _meta(found)
        self._data = data

    def bytes(self) -> bytes:
        return self._data


def _meta(found: _Object) -> dict[str, Any]:
    return {"size": len(found.data), "e_tag": found.tag, "last_modified": datetime.fromtimestamp(found.written, UTC)}


class Bucket:
    """The objects of one bucket, and the network before it.

    Attributes:
        trouble: how often a request meets trouble, as a probability: it is done and the answer is lost; it is not
            done; it is done long after the client has given up, even when that is dead by then; or it is done twice.
        worse: the same, for a while.
        written: called with the name and the bytes of each object that is put.
    """

    def __init__(self) -> None:
        self.objects: dict[str, _Object] = {}
        self.trouble = self.worse = 0.0
        self.written: Callable[[str, bytes], None] = lambda _name, _data: None
        self._tags = itertools.count()

    def connect(self, *_: object) -> Connection:
        """Return what `ObjectClient` calls."""
        return Connection(self)

    def put(self, name: str, data: bytes, mode: str | Mapping[str, Any]) -> dict[str, Any]:
        present = self.objects.get(name)
        if mode == "create" and present is not None:
            raise exceptions.AlreadyExistsError(name)
        if isinstance(mode, Mapping) and (present is None or present.tag != mode["e_tag"]):
            raise exceptions.PreconditionError(name)
        done = self.objects[name] = _Object(data, str(next(self._tags)), scheduler().now)
        self.written(name, data)
        return _meta(done)

    def found(self, name: str) -> _Object:
        if name not in self.objects:
            raise FileNotFoundError(name)
        return self.objects[name]


class Connection:
    """A client of the bucket, with the calls of a store of obstore."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def put(
        self, name: str, data: Any, *, mode: str | Mapping[str, Any] = "overwrite", use_multipart: bool = False
    ) -> dict[str, Any]:
        assert not use_multipart
        whole = bytes(data)
        return self._ask(lambda: self._bucket.put(name, whole, mode))

    def get(self, name: str, *, options: Mapping[str, Any] | None = None) -> _Answer:
        def get() -> _Answer:
            found = self._bucket.found(name)
            data = found.data if options is None else found.data[-options["range"]["suffix"] :]
            return _Answer(found, data)

        return self._ask(get)

    def head(self, name: str) -> dict[str, Any]:
        return self._ask(lambda: _meta(self._bucket.found(name)))

    def get_range(self, name: str, *, start: int, end: int) -> bytes:
        return self._ask(lambda: self._bucket.found(name).data[start:end])

    def delete(self, name: str) -> None:
        self._ask(lambda: self._bucket.objects.pop(name, None))

    def list(self) -> Iterator[list[dict[str, Any]]]:
        yield self._ask(lambda: [{"path": name, **_meta(found)} for name, found in self._bucket.objects.items()])

    def list_with_delimiter(self, folder: str) -> dict[str, Any]:
        def listed() -> dict[str, Any]:
            inside = {name: found for name, found in self._bucket.objects.items() if name.startswith(f"{folder}/")}
            prefixes = sorted({"/".join(name.split("/")[: folder.count("/") + 2]) for name in inside} - inside.keys())
            below = [name for name in inside if name.count("/") == folder.count("/") + 1]
            objects = [{"path": name, **_meta(inside[name])} for name in below]
            return {"objects": objects, "common_prefixes": prefixes}

        return self._ask(listed)

    def _ask(self, act: Callable[[], _Result]) -> _Result:
        """Send a request over the network, which goes on with it whatever becomes of the client."""
        here, random = scheduler(), scheduler().random
        task = here.current
        if task is None:
            return act()
        here.point()
        answers: list[Callable[[], _Result]] = []

        def do() -> None:
            try:
                result = act()
            except Exception as error:  # noqa: BLE001 - it is the answer
                answers.append(partial(_raise, error))
            else:
                answers.append(lambda: result)

        there, back = (random.uniform(_FASTEST, _SLOWEST) for _ in range(2))
        troubled = random.random() < max(self._bucket.trouble, self._bucket.worse)
        kind = random.choice(("lost", "not done", "late", "twice")) if troubled else ""
        if kind != "not done":
            here.at(here.now + there, do)
        if kind == "twice":
            # The client has sent it again, and took the answer to the first: the second comes whenever it comes.
            here.at(here.now + there + random.uniform(0.0, _TIMEOUT), do)
        if kind == "late":
            here.at(here.now + random.uniform(0.0, _LATEST), do)
        here.sleep(there + back if kind in {"", "twice"} else random.uniform(0.1, _TIMEOUT))
        if kind in {"lost", "not done"} or not answers:
            raise exceptions.GenericError("the connection was closed before the response came")
        return answers[0]()


def _raise(error: Exception) -> Any:
    raise error


class SteppedDisk(Disk):
    """A disk whose every call is a point at which another thread may go on, or the process may be killed.

    Attributes:
        full: how often a call that needs room finds none, as a probability.
    """

    full = 0.0

    def _point(self) -> None:
        scheduler().point()
        if self.full and scheduler().random.random() < self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def create(self, name: str, folder: int, mode: int) -> int:
        self._point()
        return super().create(name, folder, mode)

    def write(self, file: int, data: bytes | memoryview) -> int:
        self._point()
        return super().write(file, data)

    def allocate(self, file: int, size: int) -> None:
        """Take no room: the reserve of a spool is as large as hundreds of them."""

    def fsync(self, opened: int) -> None:  # noqa: ARG002 - the machine goes on; tests/support/power_loss.py is for that
        here = scheduler()
        here.point()
        if here.current is not None:
            here.sleep(here.random.random() * 0.002)

    def link(self, source: str, source_folder: int, name: str, folder: int) -> None:
        self._point()
        super().link(source, source_folder, name, folder)

    def rename(self, source: str, source_folder: int, name: str, folder: int) -> None:
        self._point()
        super().rename(source, source_folder, name, folder)

    def unlink(self, name: str, folder: int) -> None:
        scheduler().point()
        super().unlink(name, folder)

    def rmdir(self, name: str, folder: int) -> None:
        scheduler().point()
        super().rmdir(name, folder)
