"""The files in docker/: held against schema, grammar and what the pack really exports. No engine runs here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import promql_parser
import pytest
import yaml

import connectors
from connectors.observe.lag import Measurement, PartitionLag, SourceMeasurement, SpoolMeasurement
from connectors.observe.prometheus import Exporter

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SCHEMA = json.loads((ROOT / "tests" / "vendored" / "compose-spec" / "compose-spec.json").read_text())
DASHBOARD = json.loads((DOCKER / "grafana" / "dashboards" / "streams.json").read_text())
ALERTS = yaml.safe_load((DOCKER / "prometheus" / "alerts.yaml").read_text())
PROMETHEUS = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yaml").read_text())
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
OF_PANELS = [target["expr"] for panel in PANELS for target in panel["targets"]]
EXPRESSIONS = [*OF_PANELS, *(rule["expr"] for rule in RULES)]


# --- compose -------------------------------------------------------------------------------------------------------


def test_the_compose_file_is_of_its_schema() -> None:
    jsonschema_rs.validator_for(SCHEMA).validate(COMPOSE)


@pytest.mark.parametrize("service", SERVICES)
def test_each_image_has_a_version(service: str) -> None:
    _, _, tag = SERVICES[service]["image"].rpartition(":")
    assert re.search(r"\d", tag), "a tag such as latest changes under the reader"


def test_the_image_of_the_pack_has_its_version_and_a_pinned_base() -> None:
    assert SERVICES["spark"]["image"] == f"pyspark-stream-connectors:{connectors.__version__}"
    text = (DOCKER / "Dockerfile").read_text()
    assert f"pyspark-stream-connectors:{connectors.__version__}" in text
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert len(bases) == 2
    assert all(re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base) for base in bases)


def test_the_image_copies_what_is_there_and_what_the_build_context_has() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    sources = {name for line in copied for name in line.split()}
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert sources == kept
    assert all((ROOT / name).exists() for name in sources)


def test_the_versions_that_the_image_takes_from_the_lock_are_all_of_it() -> None:
    [pattern] = re.findall(r"s/(\^.+)\.\*/\\1/p", (DOCKER / "Dockerfile").read_text())
    lock = (ROOT / "requirements.lock").read_text()
    taken = [match[1] for line in lock.splitlines() if (match := re.match(pattern, line))]
    assert len(taken) == len(re.findall(r"^\w", lock, re.MULTILINE))


def test_every_port_is_on_loopback_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


# --- Prometheus and Grafana ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """The names of the samples that an exporter serves of a query with a spool, with their labels."""
    spool = SpoolMeasurement("s1", (), 9, 2, 7, 4, 100, 1500)
    source = SourceMeasurement("spool", 3, 3, 1500, {"": PartitionLag(3, 1500)}, spool)
    exporter = Exporter(0)
    exporter.update(Measurement(0, "q", "r", "orders", 7, 3, 500, 6.0, (source,)))
    found: dict[str, set[str]] = {}
    for family in exporter.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    exporter.close()
    return found


def parsed(expression: str) -> Any:
    """The syntax tree of an expression, with Grafana's variables in place."""
    return promql_parser.parse(expression.replace("$__rate_interval", "5m").replace("$query", ".*"))


def nodes(node: Any) -> Iterator[Any]:
    """A tree's nodes; the parser gives no walk of its own."""
    yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        if (inner := getattr(node, name, None)) is not None:
            yield from nodes(inner)
    for argument in getattr(node, "args", []):
        yield from nodes(argument)


def selectors(expression: str) -> list[Any]:
    return [node for node in nodes(parsed(expression)) if isinstance(node, promql_parser.VectorSelector)]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_is_promql_over_what_the_exporter_serves(expression: str, exported: dict[str, set[str]]) -> None:
    used = selectors(expression)
    assert used
    for selector in used:
        assert selector.name in exported
        assert {matcher.name for matcher in selector.matchers.matchers} <= exported[selector.name]
    labels = set().union(*(exported[selector.name] for selector in used))
    grouped = re.findall(r"\b(?:by|on|group_left)\s*\(([^)]*)\)", expression)
    assert {name.strip() for names in grouped for name in names.split(",")} <= labels


def test_every_metric_that_is_exported_is_on_the_dashboard(exported: dict[str, set[str]]) -> None:
    shown = {selector.name for expression in OF_PANELS for selector in selectors(expression)}
    assert shown == set(exported)


def test_the_files_name_each_other(exported: dict[str, set[str]]) -> None:
    assert [DOCKER / "prometheus" / name for name in PROMETHEUS["rule_files"]] == [
        DOCKER / "prometheus" / "alerts.yaml"
    ]
    targets = [
        target for job in PROMETHEUS["scrape_configs"] for each in job["static_configs"] for target in each["targets"]
    ]
    assert "spark:9464" in targets
    provisioned = DOCKER / "grafana" / "provisioning"
    [source] = yaml.safe_load((provisioned / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert {panel["datasource"]["uid"] for panel in PANELS} == {source["uid"]}
    [provider] = yaml.safe_load((provisioned / "dashboards" / "streams.yaml").read_text())["providers"]
    assert any(mount.endswith(f":{provider['options']['path']}:ro") for mount in SERVICES["grafana"]["volumes"])
    [variable] = DASHBOARD["templating"]["list"]
    assert re.fullmatch(r"label_values\((\w+), query\)", variable["query"])[1] in exported  # type: ignore[index]
