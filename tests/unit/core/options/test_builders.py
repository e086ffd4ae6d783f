"""The builders of options: what they return, and what type checkers say of their keywords."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from connectors import options
from connectors.core.errors import OptionError
from connectors.pubsub.options.source import parse_read_options
from tests.servers.node_packages import node_packages
from tests.support.clients import NPM

ROOT = Path(__file__).parents[4]
_PROGRAM = """\
from connectors import options

source: dict[str, str] = options.pubsub(projectId="shop", subscriptionId="orders", fetchers=2, maxSpoolBytes="4g")
sink = options.kafka_py({"kafka.bootstrap.servers": "broker:9092"}, topic="orders", deliveryGuarantee="exactly_once")
stream = options.kinesis(streamName="orders", consumerMode="efo", consumerName="shop")
"""
_WRONG = {
    "options.pubsub(fetcherz=2)  # a name\n": 'Unexpected keyword argument "fetcherz"',
    'options.pubsub(fetchers="two")  # a type\n': 'Argument "fetchers" to "pubsub" has incompatible type "str"',
    'options.kinesis(consumerMode="fast")  # a choice\n': 'Argument "consumerMode" to "kinesis" has incompatible type',
}


def test_a_builder_returns_what_the_format_reads(tmp_path: Path) -> None:
    texts = options.pubsub(
        projectId="shop", subscriptionId="orders", spoolLocation=str(tmp_path), fetchers=2, failOnDataLoss=False
    )
    assert texts["failOnDataLoss"] == "false"
    assert parse_read_options(texts, {}, streaming=True).fetchers == 2


def test_names_with_a_dot_stand_in_the_dictionary() -> None:
    texts = options.kafka_py({"kafka.bootstrap.servers": "broker:9092"}, topic="orders")
    assert texts == {"kafka.bootstrap.servers": "broker:9092", "topic": "orders"}


def test_a_builder_refuses_an_unknown_name() -> None:
    with pytest.raises(OptionError, match=r"\[OPTION_UNKNOWN\] The option subscribePatern is unknown"):
        options.kafka_py(subscribePatern="orders.*")  # type: ignore[call-arg]


def test_a_type_checker_accepts_right_options_and_finds_a_wrong_name_type_and_choice(tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text(_PROGRAM + "".join(_WRONG))
    command = [sys.executable, "-m", "mypy", "--strict", str(program)]  # with the cache of ./dev check
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    errors = [line.partition(": error: ")[2] for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == len(_WRONG), done.stdout
    assert all(error.startswith(text) for error, text in zip(errors, _WRONG.values(), strict=True)), done.stdout


def test_the_checker_of_editors_accepts_and_finds_the_same(tmp_path: Path) -> None:
    """Pyright is a program of node's: npm installs it, so this test is where npm is."""
    pyright = node_packages("pyright", NPM)
    if pyright.reason:
        pytest.skip(pyright.reason)
    (tmp_path / "job.py").write_text(_PROGRAM + "".join(_WRONG))
    # Only what is installed beside the job is looked at, as in an editor; strict, since Any would accept everything.
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)], "include": ["job.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    program = str(pyright.modules / "pyright" / "index.js")
    command = [pyright.node, program, "--outputjson", "--pythonpath", sys.executable, "--project", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    found = [(each["range"]["start"]["line"], each["rule"]) for each in report["generalDiagnostics"]]
    first = _PROGRAM.count("\n")
    assert found == [(first, "reportCallIssue"), (first + 1, "reportArgumentType"), (first + 2, "reportArgumentType")]


def test_the_stub_fits_the_module() -> None:
    command = [sys.executable, "-m", "mypy.stubtest", "connectors.core.options.builders"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
