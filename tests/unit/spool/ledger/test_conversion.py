"""A spool of an older format is read as it is, and converted by its next writer; no crash on the way changes a row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from connectors.core.errors import SpoolVersionError
from connectors.core.processes.failpoints import set_failpoints
from connectors.spool import stats
from connectors.spool.admin.repair import adopt
from connectors.spool.admin.verify import verify
from connectors.spool.segments.segment import checksum
from connectors.spool.stream.slices import SpoolRange, plan_spool_rows
from connectors.testing.object_store import ObjectStoreServer
from tests.golden.spools_record import SPOOLS
from tests.servers.object_stores import STORES
from tests.support.golden_spools import PRESENT, GoldenSpool
from tests.support.power_loss_rig import UnsyncedDisk, on_disk
from tests.support.pubsub_sweep import points_in_code
from tests.support.spool_writing import SOURCES, HandSpool, access_of, object_store_options

pytestmark = pytest.mark.guarantee

NAMES = sorted(path.name.removesuffix(".tar.gz") for path in SPOOLS.iterdir())
STEPS = {
    *(f"convert.{step}_identity" for step in ("before", "after")),
    *(f"manifest.{step}_write" for step in ("before", "after")),
    *(f"fence.{step}" for step in ("before_claim", "after_claim", "before_seal", "after_seal")),
    *(f"ledger.{step}" for step in ("before_put", "after_put", "after_first_snapshot")),
    *(f"opening.{step}_clear" for step in ("before", "after")),
    "store.after_publish",
}
"""What a conversion passes on every store."""
OF_A_START = tuple({point.partition(".")[0] for point in STEPS})
OLDER = "format_1"


@pytest.fixture(params=["folder", "own", pytest.param("moto", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple]:
    """Where a spool can be, and how to reach it."""
    with ExitStack() as stack:
        if request.param == "folder":
            stack.enter_context(on_disk(UnsyncedDisk()))
            yield str(tmp_path / "spool"), None
        else:
            server = stack.enter_context(ObjectStoreServer() if request.param == "own" else STORES["moto"]())
            options = object_store_options(server) if request.param == "own" else server.options("golden")
            yield options["spoolLocation"], access_of(options)


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_spool_is_opened_with_every_row_and_id_and_is_in_the_present_format_then(
    name: str, tmp_path: Path
) -> None:
    golden = GoldenSpool(name, str(tmp_path / "spool"))
    golden.assert_is_whole(golden.open())
    assert golden.identity().version == PRESENT
    epoch = golden.ledger.claim.epoch
    snapshot = json.loads((tmp_path / f"spool/ledger/{epoch}/0").read_bytes().splitlines()[0])
    assert (snapshot["v"], snapshot["kind"]) == (PRESENT, "snapshot")
    assert golden.ledger.admit() == 1
    spool = HandSpool(tmp_path / "spool")
    spool.write([*golden.facts["ids"], "new"], fetcher="again", published=3_000_001)
    golden.ledger.admit()
    spool.ledger = golden.ledger
    assert spool.all_ids() == [text for _, text in golden.facts["rows"]] + ["waiting", "new"]
    state = golden.ledger.state
    assert golden.open("next").head == state.head
    assert verify(golden.location).sound


@pytest.mark.parametrize("name", NAMES)
def test_who_only_looks_reads_a_golden_spool_and_changes_nothing(name: str, tmp_path: Path) -> None:
    golden = GoldenSpool(name, str(tmp_path / "spool"))
    golden.assert_is_whole(golden.look())
    assert verify(golden.location).sound
    counts = stats(golden.location)
    assert (counts.rows, counts.segments, counts.waiting_segments) == (
        golden.facts["head"],
        golden.facts["segments"],
        1,
    )
    wanted = SpoolRange("earliest", "latest", 1 << 20, 4)
    parts = plan_spool_rows(golden.location, "pubsub", SOURCES, wanted)
    assert sum(part.rows for slices in parts for part in slices) == len(golden.facts["rows"])
    assert golden.present() == golden.files


def test_a_spool_of_an_older_format_that_was_moved_is_adopted_and_opened(tmp_path: Path) -> None:
    golden = GoldenSpool(OLDER, str(tmp_path / "spool"))
    (tmp_path / "spool").rename(tmp_path / "moved")
    golden.location = str(tmp_path / "moved")
    assert adopt(golden.location).old == str(tmp_path / "spool")
    golden.assert_is_whole(golden.look())
    golden.assert_is_whole(golden.open())


def test_a_crash_at_any_step_of_a_conversion_changes_no_row_and_leaves_nothing_behind(place: tuple) -> None:
    golden = GoldenSpool(OLDER, *place)
    passed = set()
    for point in sorted(point for point in points_in_code() if point.startswith(OF_A_START)):
        number = 1
        while crashes(golden, f"{point}=raise:5:{number}"):
            passed.add(point)
            number += 1
            present = golden.present()
            # Older versions read the identity first, so they never see half of a conversion.
            assert golden.identity().version == PRESENT or present == golden.files
            golden.assert_is_whole(golden.look())
            state = golden.open("next")
            golden.assert_is_whole(state)
            assert set(golden.store().list("manifests")) == state.segments.manifest_names()
            golden.restore()
        golden.restore()
    assert passed >= STEPS


def crashes(golden: GoldenSpool, failpoint: str) -> bool:
    """Open a spool with a failpoint; whether that ended the start."""
    set_failpoints(failpoint)
    try:
        golden.open()
    except OSError:
        return True
    finally:
        set_failpoints("")
    return False


@pytest.mark.parametrize("file", ["spool.json", "ledger/3/159"])
def test_a_file_of_a_newer_format_is_refused_by_name_before_anything_is_changed(file: str, tmp_path: Path) -> None:
    golden = GoldenSpool(OLDER, str(tmp_path / "spool"))
    text = json.dumps(json.loads(golden.files[file].splitlines()[0]) | {"v": PRESENT + 1}, separators=(",", ":"))
    (tmp_path / "spool" / file).write_bytes(f"{text}\n{checksum(text.encode())}\n".encode())
    before = golden.present()
    with pytest.raises(SpoolVersionError, match=rf"^\[SPOOL_RECORD_VERSION\].*version {PRESENT + 1}.*Run the version"):
        golden.open()
    assert golden.present() == before
