"""The manifest for Kubernetes, the recipe for conda and the pages about platforms, held to schemas and to the code."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

import connectors
from connectors.kafka.options.sink import parse_write_options
from connectors.kafka.options.source import parse_read_options
from tests.support.docs_facts import Page, violations

ROOT = Path(__file__).parents[3]
MANIFEST = list(yaml.safe_load_all((ROOT / "docker/kubernetes/orders.yaml").read_text(encoding="utf-8")))
[APPLICATION] = [each for each in MANIFEST if each["kind"] == "SparkApplication"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def page(name: str) -> Page:
    path = Path("docs/how-to") / name
    return Page(path, (ROOT / path).read_text(encoding="utf-8"))


def strict(schema: Any) -> Any:
    """The schema, with what Kubernetes drops without a word, unknown fields, as an error."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: strict(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        inner.setdefault("additionalProperties", bool(schema.get("x-kubernetes-preserve-unknown-fields")))
    if schema.get("x-kubernetes-int-or-string"):
        inner.pop("type", None)
    return inner


SCHEMA = strict(json.loads((ROOT / "tests/vendored/spark-operator/sparkapplications.json").read_text(encoding="utf-8")))


def test_the_stream_is_what_the_operator_takes() -> None:
    validator = jsonschema_rs.validator_for({**SCHEMA, "$schema": "http://json-schema.org/draft-07/schema#"})
    without = {**APPLICATION, "metadata": {}}  # of it the schema says only that it is an object
    assert [error.message for error in validator.iter_errors(without)] == []
    for part, wrong in (("driver", {"memmory": "1g"}), ("executor", {"instances": "two"}), ("spec", {"mode": "fast"})):
        spec = json.loads(json.dumps(APPLICATION["spec"]))
        (spec if part == "spec" else spec[part]).update(wrong)
        assert not validator.is_valid({**without, "spec": spec}), wrong


def test_what_the_stream_names_is_in_the_manifest() -> None:
    names = {(each["kind"], each["metadata"]["name"]) for each in MANIFEST}
    spec = APPLICATION["spec"]
    volumes = {each["name"]: each for each in spec["volumes"]}
    assert ("PersistentVolumeClaim", volumes["data"]["persistentVolumeClaim"]["claimName"]) in names
    assert ("ConfigMap", volumes["job"]["configMap"]["name"]) in names
    for part in ("driver", "executor"):
        assert ("ServiceAccount", spec[part]["serviceAccount"]) in names
        assert {each["name"] for each in spec[part]["volumeMounts"]} <= set(volumes)
        assert spec[part]["securityContext"]["runAsUser"] == 185
    assert len({each["metadata"]["namespace"] for each in MANIFEST}) == 1
    assert spec["image"].endswith(f":{connectors.__version__}")
    assert re.findall(r"^pyspark==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)[0].startswith(
        spec["sparkVersion"]
    )


@pytest.mark.parametrize(("recipe", "project"), [("recipe", "."), ("autoload", "autoload")])
def test_the_recipe_for_conda_requires_what_the_project_does(recipe: str, project: str) -> None:
    found = yaml.safe_load((ROOT / f"conda/{recipe}.yaml").read_text(encoding="utf-8"))
    declared = tomllib.loads((ROOT / project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = [re.sub(r"(>=|==)", r" \1", each) for each in declared["dependencies"]]
    assert found["requirements"]["run"] == [f"python {declared['requires-python']}", *bounds]
    assert found["context"] == {"name": declared["name"], "version": connectors.__version__}
    assert (ROOT / "conda" / found["source"]["path"]).resolve() == (ROOT / project).resolve()
    assert found["about"]["license"] == declared["license"]
    entries = found["build"].get("python", {}).get("entry_points", [])
    assert dict(entry.split(" = ") for entry in entries) == declared.get("scripts", {})


def test_the_table_of_extras_has_those_of_the_project() -> None:
    page = (ROOT / "docs/how-to/platforms.md").read_text(encoding="utf-8")
    table = page.partition("## Extras")[2].partition("\n## ")[0]
    named = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert sorted(named) == sorted(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("block", page("kafka-services.md").blocks("python"))
def test_the_settings_for_a_kafka_service_are_parsed_as_they_stand(block: str) -> None:
    settings: dict[str, Any] = {}
    exec(compile(block.partition("}\n")[0] + "}", "kafka-services.md", "exec"), settings)
    given, environ = settings["settings"], {"CONFLUENT_SECRET": "s"}
    read = parse_read_options({"subscribe": "orders", **given}, environ, streaming=True)
    written = parse_write_options({"topic": "orders", **given}, environ, streaming=True)
    for options in (read, written):
        assert options.client.revealed()["sasl.mechanism"] == given["kafka.sasl.mechanism"]


@pytest.mark.parametrize("name", ["cloud-identity.md"])
def test_policies_and_manifests_on_a_page_can_be_read(name: str) -> None:
    policies = [json.loads(text) for text in page(name).blocks("json")]
    assert len(policies) == 3
    assert {each["Version"] for each in policies} == {"2012-10-17"}
    assert [yaml.safe_load(text)["kind"] for text in page(name).blocks("yaml")] == ["ServiceAccount"]


def test_the_job_in_the_manifest_names_what_exists() -> None:
    [job] = [each["data"]["orders.py"] for each in MANIFEST if each["kind"] == "ConfigMap"]
    assert violations(Page(Path("docs/page.md"), f"```python\n{job}```")) == []
