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
ALERTS, SIZE, DOCKER = (
    (ROOT / "docs/how-to" / name).read_text(encoding="utf-8") for name in ("alerts.md", "size.md", "docker.md")
)


QUANTITY = re.compile(r"\d+ (?:GB|minutes|days)|a minute|an hour|a fifth|\bfour\b")


def quantity(rule: str, unit: str = "s") -> str:
    """A number of the rules as the pages say it."""
    seconds = float(rule) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[unit]
    words = {0.2: "a fifth", 4: "four", 60: "a minute", 3600: "an hour", 2e9: "2 GB"}
    days, minutes = f"{seconds / 86_400:g} days", f"{seconds / 60:g} minutes"
    return words.get(seconds, days if seconds >= 86_400 else minutes)


def alert_rows(page: str) -> dict[str, tuple[str, str]]:
    """When each alert of a page fires, and after how long."""
    return {
        name: (fires, wait)
        for name, fires, wait in re.findall(r"^\| `(\w+)` \|(?: \w+ \|)? ([^|]+) \| ([^|]+) \|", page, re.MULTILINE)
        if name in {rule["alert"] for rule in RULES}
    }


def test_both_pages_say_of_each_alert_the_numbers_of_its_rule() -> None:
    rows = alert_rows(ALERTS)
    assert alert_rows(DOCKER) == rows
    assert set(rows) == {rule["alert"] for rule in RULES}
    for rule in RULES:
        fires, wait = rows[rule["alert"]]
        windows = re.findall(r"\[(\d+)([mhd])\]", rule["expr"])
        limits = [limit for limit in re.findall(r"> ([\d.e]+)", rule["expr"]) if float(limit)]
        numbers = [*(quantity(*each) for each in windows), *map(quantity, limits)]
        assert set(QUANTITY.findall(fires)) == set(numbers), rule["alert"]
        assert wait == quantity(rule["for"][:-1], rule["for"][-1]), rule["alert"]


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
