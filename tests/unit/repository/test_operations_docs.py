"""The pages on alerts and sizes say what the files of docker/ and the declared options hold."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
from pathlib import Path

import promql_parser
import pytest
import yaml

from connectors.core.options.declaration import declared_options
from connectors.pubsub.options.source import PubSubReadOptions
from tests.support.documents import blocks

ROOT = Path(__file__).parents[3]
FILE = ROOT / "docker" / "prometheus" / "alerts.yaml"
RULES = [rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]]
ALERTS, SIZE = ((ROOT / "docs/how-to" / name).read_text(encoding="utf-8") for name in ("alerts.md", "size.md"))


def test_the_page_has_each_alert_with_its_severity() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", ALERTS, re.MULTILINE))
    assert rows == {rule["alert"]: rule["labels"]["severity"] for rule in RULES}


def test_the_rule_on_the_page_is_promql() -> None:
    [rule] = [rule for one in blocks(ALERTS) if one.language == "yaml" for rule in yaml.safe_load(one.text)]
    promql_parser.parse(rule["expr"])
    assert "connectors_batch_timestamp_seconds" in rule["expr"]


def test_a_spool_alerts_before_fetching_pauses_by_default() -> None:
    [expression] = [rule["expr"] for rule in RULES if rule["alert"] == "SpoolGrows"]
    limit = float(re.search(r"> (\S+)", expression)[1])  # type: ignore[index]
    [option] = [one for one in declared_options(PubSubReadOptions).values() if one.name == "maxSpoolBytes"]
    assert str(option.default) in ("4g", str(4 * 1024**3))
    assert limit < 4 * 1024**3


@pytest.mark.may_skip_in_ci("promtool is a peer: it comes with Prometheus, as with Debian's package of it")
def test_prometheus_accepts_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: Debian's package prometheus has it; test_docker.py tests the grammar")
    subprocess.run([promtool, "check", "rules", str(FILE)], check=True)


@pytest.mark.may_skip_in_ci("promtool is a peer, as above")
def test_the_alerts_fire_stay_and_are_quiet_as_their_test_file_says() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: Debian's package prometheus has it")
    subprocess.run([promtool, "test", "rules", str(FILE.with_name("alerts_test.yaml"))], check=True)


def test_the_example_of_sizes_prints_what_the_page_shows() -> None:
    code, shown = blocks(SIZE)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code.text, "size.md", "exec"), {})
    assert printed.getvalue().strip() == shown.text.strip()
