"""What goes with the files of a release: a bill of materials, a statement of their origin, checksums."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from tools.audit import license_of
from tools.lock import pins, project
from tools.release.commands import ROOT, run
from tools.release.commit import Release
from tools.release.trial import Environment
from tools.side_environment import side_environment

__all__ = ["bill_of_materials", "checksums", "provenance"]

NAMESPACE = "urn:pyspark-stream-connectors"
_VALID = """
import sys
from pathlib import Path
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(Path(sys.argv[1]).read_text(encoding="utf-8"))
sys.exit(fault and str(fault))
"""


def bill_of_materials(environment: Environment, target: Path, version: str) -> dict[str, Any]:
    """Write the bill of materials (CycloneDX 1.6) of an environment with all extras, and return it.

    Its components have the versions of the lock. The properties of the pack are the lines of pyproject.toml, thus the
    lower bounds, each with its extra. The maker leaves out what is no known name of a license: that is taken from the
    metadata as it stands. The result is validated against the published schema.
    """
    python = side_environment("packaging")
    run(
        *(python, "-m", "cyclonedx_py", "environment", environment.python),
        *("--pyproject", ROOT / "pyproject.toml", "--mc-type", "library", "--sv", "1.6", "--of", "JSON"),
        *("--output-reproducible", "--output-file", target),
    )
    bill: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    declared = project()
    extras = {"": declared["dependencies"], **declared["optional-dependencies"]}
    bill["metadata"]["component"] |= {
        "version": version,
        "purl": f"pkg:pypi/{declared['name']}@{version}",
        "properties": [
            {"name": f"{NAMESPACE}:requires:{extra or 'always'}", "value": line}
            for extra, lines in extras.items()
            for line in lines
        ],
    }
    for component in bill["components"]:
        if "licenses" not in component:
            said = license_of(distribution(component["name"]))
            component["licenses"] = [{"license": {"name": said, "acknowledgement": "declared"}}]
        links = component.get("externalReferences", [])
        links[:] = [link for link in links if not link["url"].startswith("file:")]  # where it was installed from
    target.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    run(python, "-c", _VALID, target)
    return bill


def provenance(release: Release, files: Iterable[Path], environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return an in-toto statement of where files come from, in the form of SLSA's provenance, version 1.

    It is not signed: whoever builds the commit again gets the same bytes, and the workflow signs its own statement. A
    machine is not named, but for the service that runs the workflow.
    """
    server, repository = environ.get("GITHUB_SERVER_URL", ""), environ.get("GITHUB_REPOSITORY", "")
    home = f"{server}/{repository}" if environ.get("GITHUB_ACTIONS") == "true" else ""
    builder = (
        f"{home}/.github/workflows/release.yml@{environ.get('GITHUB_REF', '')}" if home else f"{NAMESPACE}:by-hand"
    )
    invocation = f"{home}/actions/runs/{environ['GITHUB_RUN_ID']}" if home else f"{NAMESPACE}:{release.commit}"
    [hatchling] = [pin.partition("==")[2] for pin in pins("requirements.lock") if pin.startswith("hatchling==")]
    lock = hashlib.sha256((ROOT / "requirements.lock").read_bytes()).hexdigest()
    date = datetime.fromtimestamp(release.date, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": _sha256(path)}} for path in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{NAMESPACE}:dev-release:1",
                "externalParameters": {"command": f"./dev release {release.version}", "tag": release.tag},
                "internalParameters": {"SOURCE_DATE_EPOCH": release.date, "commitDate": date},
                "resolvedDependencies": [
                    {"uri": f"git+{home or NAMESPACE}@{release.tag}", "digest": {"gitCommit": release.commit}},
                    {"uri": "requirements.lock", "digest": {"sha256": lock}},
                    {"uri": f"pkg:pypi/hatchling@{hatchling}"},
                ],
            },
            "runDetails": {"builder": {"id": builder}, "metadata": {"invocationId": invocation}},
        },
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def checksums(files: Iterable[Path]) -> str:
    """Return a line for each file, as ``sha256sum --check`` reads them."""
    return "".join(f"{_sha256(path)}  {path.name}\n" for path in files)
