"""What holds for every test: its tier, no skip in CI, no process left behind, the same settings everywhere."""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.support.processes import RUN_MARK, orphans
from tests.support.quick_java import OPTIONS, VARIABLE
from tests.support.second_try import SecondTry
from tests.support.seeds import default_seed

TIERS = {"unit", "contract", "spark", "integration"}

# The speed of the machine decides no test.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("house")

# As ./dev sets them, for a pytest that is called directly.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault(VARIABLE, OPTIONS)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a third of what NumPy's import takes
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # else one JVM in forty dies in fork(), where gRPC was used before
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process of a test compiles all of our modules
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options."""
    parser.addoption("--long", action="store_true", help="run the tests that are marked long, and no others")
    parser.addoption("--seed", type=int, help="repeat a run by its seed (default: from the commit under CI, else new)")
    parser.addoption("--second-try", action="store_true", help="run the failed tests once more, each alone")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Choose seed and order of the run, before hypothesis and the processes of pytest-xdist read their options."""
    option = config.option
    option.seed = default_seed() if option.seed is None else option.seed
    if option.hypothesis_seed is None:
        option.hypothesis_seed = option.seed
    option.loadscopereorder = False  # `GROUPS` has the order


def pytest_configure(config: pytest.Config) -> None:
    """Let the process that reports run failed tests again, and make a run in the background as one before a terminal.

    A shell has programs in the background ignore Ctrl-C, and they pass that on to what they start.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("second_try") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SecondTry(config))


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what lives as long as the run, and come less often: a sixth of the time."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def pytest_report_header(config: pytest.Config) -> str:
    """Say how to repeat the run."""
    return f"seed: {config.getoption('seed')} (repeat it with --seed)"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier, the name of its folder under tests/, and leave out what other runs are for.

    Long ones are for ``./dev chaos long``, those for each Spark for ``./dev --spark VERSION test -m versions
    tests/spark``. A test that is named on the command line runs in any case.
    """
    here = Path(__file__).parent
    only_long = config.getoption("--long")
    if only_long or not any("::" in argument for argument in config.args):
        for_each_spark = bool(config.option.markexpr)
        left = [
            item
            for item in items
            if (item.get_closest_marker("long") is not None) != only_long
            or (item.get_closest_marker("versions") is not None and not for_each_spark)
        ]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]
    items.sort(key=lambda item: group_of(item.nodeid)[0])
    for item in items:
        tier = item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""
        if tier in TIERS:
            item.add_marker(tier)


SPARK_PROGRAMS = re.compile(
    r"spark/test_(\w*kills|autoload|cluster|connect|demo|image|pubsub_executors|register|soak)\b"
)
GROUPS = (
    ("programs of Spark", SPARK_PROGRAMS),
    ("spark", re.compile(r"^(tests/)?spark/")),
    ("kafka", re.compile(r"integration/kafka/")),
    ("emulator", re.compile(r"emulator")),
    ("stores", re.compile(r"contract/test_stores")),
    ("kinesis-local", re.compile(r"kinesis_local|kinesis/test_local")),
)
"""What runs in one process each, in the order in which they start: the first ones take longest.

Sessions of Spark, and tests that start programs of Spark, since two cores carry two Sparks and no more; and all that
share a server that takes seconds to start.
"""


def group_of(name: str) -> tuple[int, str]:
    """Return the place and the name of the group of a test.

    A module of unit tests is a group, so that what it reads once is read once; any other test goes where there is room.
    """
    for place, (group, pattern) in enumerate(GROUPS):
        if pattern.search(name):
            return place, group
    if "unit/" in name:
        return len(GROUPS) + 1, name.partition("::")[0]
    return len(GROUPS), name


class ServerScheduling(LoadScopeScheduling):
    """Which tests run in one process, where several run at a time: those of one group.

    (pytest-xdist's own ``loadgroup`` writes its groups into a field that pytest 9.2 no longer has, and groups nothing.)
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)[1]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Hand the tests out by `ServerScheduling`."""
    return ServerScheduling(config, log)


def _fail_skip_in_ci(report: Any) -> None:
    """Under CI=true what cannot be tested is a failure, with the reason of the skip."""
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped under CI=true: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """A skipped test fails in CI, unless it is marked `may_skip_in_ci`."""
    report = yield
    if item.get_closest_marker("may_skip_in_ci") is None:
        _fail_skip_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Any:
    """A module that skips itself fails in CI."""
    report = yield
    _fail_skip_in_ci(report)
    return report


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Return a seed that follows from the run's and the test's name; `random` starts with it too."""
    number = zlib.crc32(f"{request.config.getoption('seed')} {request.node.nodeid}".encode())
    random.seed(number)
    return number


@pytest.fixture(scope="session", autouse=True)
def no_process_left_behind() -> Iterator[None]:
    """Every process that a test starts ends soon after its parent: else the last test fails."""
    mark = uuid4().hex
    os.environ[RUN_MARK] = mark
    yield
    end = time.monotonic() + 30  # 5 s are what is promised; the rest is for a busy machine
    while (left := orphans(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left, f"processes left behind: {left}"
