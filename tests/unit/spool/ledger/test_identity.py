"""A spoolLocation that has files of its user: a query that starts there, and a wiping, leave them alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connectors.core.errors import SpoolError, SpoolVersionError
from connectors.core.offsets import SENTINEL
from connectors.spool.admin.doctor import check_spool
from connectors.spool.admin.repair import wipe
from connectors.spool.ledger.identity import open_identity
from connectors.spool.ledger.records import FORMAT_VERSION
from connectors.spool.segments.segment import checksum
from connectors.spool.store.local import LocalStore
from tests.support.spool_streams import open_stream
from tests.support.spool_writing import SOURCES, HandSpool, fill

DEAD, LOCK_OF_THE_DEAD = "0123456789abcdef", b'{"pid": 1, "start": 2, "jvm": 1, "jvm_start": 2}'
FOREIGN = ["tmp/report.csv", "tmp/run-1/part.csv", "lock", "tmp", "quarantine/bad.csv", "quarantine/bad.json", "wiping"]


def put(root: Path, name: str, data: bytes = b"the user's own") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else b"" for path in root.rglob("*")}


def start(root: Path) -> None:
    with open_stream(root) as stream:
        stream.latest_offset(SENTINEL, 10)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_with_files_of_others_where_a_spool_keeps_its_own_is_refused_and_not_changed(
    name: str, tmp_path: Path
) -> None:
    put(tmp_path, name)
    before = contents(tmp_path)
    with pytest.raises(SpoolError, match=rf"^\[SPOOL_FOREIGN_FILE\].*{tmp_path}/{name.partition('/')[0]}"):
        start(tmp_path)
    assert contents(tmp_path) == before
    codes = {finding.check: finding.code for finding in check_spool(str(tmp_path), "pubsub", SOURCES, 1)}
    assert codes["content"] == "SPOOL_FOREIGN_FILE"


def test_other_files_in_the_folder_are_no_hindrance_and_stay(tmp_path: Path) -> None:
    put(tmp_path, "readme.txt")
    start(tmp_path)
    assert (tmp_path / "readme.txt").read_bytes() == b"the user's own"


@pytest.mark.parametrize(
    "lock", [b"", b"\0" * 60, LOCK_OF_THE_DEAD, *(LOCK_OF_THE_DEAD[:size] for size in (1, 5, 9, 20, 35, 47))]
)
def test_what_a_first_start_left_that_was_broken_off_is_no_hindrance_and_goes(lock: bytes, tmp_path: Path) -> None:
    put(tmp_path, "lock", lock)
    for ending in ("1", "reserve", "spool.json"):
        put(tmp_path, f"tmp/{DEAD}-{ending}")
    start(tmp_path)
    assert not list((tmp_path / "tmp").glob(f"{DEAD}-*"))


@pytest.mark.parametrize("name", ["report.csv", "run-1/part.csv", "disk-reserve", "dead-1", f"{DEAD}-7/part.csv"])
def test_a_file_that_came_into_the_temporary_folder_later_is_not_deleted(name: str, tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    fill(spool)
    mine = put(spool.root, f"tmp/{name}")
    start(spool.root)
    assert mine.read_bytes() == b"the user's own"
    assert wipe(str(spool.root)).left == (f"tmp/{name}",)
    assert mine.read_bytes() == b"the user's own"


def test_a_file_named_as_the_mark_of_a_wiping_lets_no_folder_be_wiped(tmp_path: Path) -> None:
    put(tmp_path, "wiping", b"notes")
    put(tmp_path, f"tmp/{DEAD}-1")
    with pytest.raises(SpoolError, match="SPOOL_NOT_FOUND"):
        wipe(str(tmp_path))
    assert contents(tmp_path).keys() == {"wiping", "tmp", f"tmp/{DEAD}-1"}


@pytest.mark.parametrize("file", ["spool.json", "ledger/1/0"])
@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 0, "2", True, None])
def test_a_file_of_another_format_is_refused_by_name_before_anything_is_changed(
    file: str, version: object, tmp_path: Path
) -> None:
    spool = HandSpool(tmp_path)
    spool.open()
    value = json.loads((tmp_path / file).read_bytes().splitlines()[0]) | {"v": version}
    text = json.dumps(value, separators=(",", ":")).encode()
    (tmp_path / file).write_bytes(b"\n".join((text, checksum(text).encode(), b"")))
    before = spool.files()
    with pytest.raises(SpoolVersionError, match=r"^\[SPOOL_RECORD_VERSION\].*Run the version"):
        HandSpool(tmp_path, owner="next").open()
    assert spool.files() == before


class _Overtaken(LocalStore):
    """The store of a query that is stopped just before it makes a spool, while another query makes one."""

    def create(self, name: str, data: bytes) -> bool:
        open_identity(LocalStore(self.root, "01" * 8), "pubsub", SOURCES)
        return super().create(name, data)


def test_a_query_that_is_overtaken_while_it_makes_a_spool_takes_the_identity_of_the_other(tmp_path: Path) -> None:
    own = open_identity(_Overtaken(str(tmp_path), "23" * 8), "pubsub", SOURCES)
    assert own == open_identity(LocalStore(str(tmp_path), "45" * 8), "pubsub", SOURCES)
