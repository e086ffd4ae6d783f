"""What ``./dev release`` refuses, builds and finds, and what its workflow may do."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml

import connectors
from tests.support.docs_facts import Page, violations
from tools.release.build import Built, build, build_twice
from tools.release.checks import faults, faults_of_text
from tools.release.commands import ReleaseError, run
from tools.release.commit import PUBLISHED, Release, notes_of, prepare, published, released
from tools.release.records import checksums, provenance
from tools.release.trial import faults_of_installs
from tools.site import list_versions, llms_text

ROOT = Path(__file__).parents[3]
VERSION = connectors.__version__
PACK = "pyspark_stream_connectors"
COPIED = ["pyproject.toml", "LICENSE", ".gitignore", "conda", "autoload"]
OF_PACKAGE = ["__init__.py", "py.typed", "core/errors/codes.toml", "core/options/builders.pyi"]
OF_PACKAGE += ["protobuf/confluent/built_in.desc"]
WORKFLOW = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
JOBS: dict[str, Any] = yaml.safe_load(WORKFLOW)["jobs"]


def git(tree: Path, *words: str) -> str:
    return run("git", *words, cwd=tree).strip()


def change(tree: Path, name: str, before: str, after: str) -> None:
    """Change a file of a tree, and commit."""
    text = (tree / name).read_text(encoding="utf-8")
    assert before in text
    (tree / name).write_text(text.replace(before, after), encoding="utf-8")
    git(tree, "commit", "--quiet", "--all", "--message", "Change")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the projects of this one, but for most modules, as before its first release."""
    for name, value in (("NAME", "A Person"), ("EMAIL", "person@shop.test")):
        monkeypatch.setenv(f"GIT_AUTHOR_{name}", value)
        monkeypatch.setenv(f"GIT_COMMITTER_{name}", value)
    root = tmp_path / "repository"
    for name in [*COPIED, *(f"connectors/{file}" for file in OF_PACKAGE)]:
        source, target = ROOT / name, root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    for name, sentences in PUBLISHED.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("\n".join(f"#{before}" for before, _ in sentences))
    changes = "## [Unreleased]\n\n{}### Added\n\n- one\n{}\n### Removed\n\n- two\n"
    sentences = [before for before, _ in PUBLISHED["CHANGELOG.md"]]
    (root / "CHANGELOG.md").write_text("# Changelog\n\n" + changes.format(*sentences))
    git(tmp_path, "init", "--quiet", "--initial-branch", "main", str(root))
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "Begin")
    return root


def test_the_commit_of_a_release_dates_the_changelog_and_leaves_the_tree_alone(tree: Path) -> None:
    head = git(tree, "rev-parse", "HEAD")
    release = prepare(tree, VERSION, "2026-12-31")
    assert (git(tree, "rev-parse", "HEAD"), git(tree, "status", "--porcelain")) == (head, "")
    assert git(tree, "rev-parse", release.branch, f"{release.branch}~1").split() == [release.commit, head]
    changelog = git(tree, "show", f"{release.commit}:CHANGELOG.md")
    assert changelog.startswith(f"# Changelog\n\n## [Unreleased]\n\n## [{VERSION}] - 2026-12-31\n\n### Added\n")
    assert release.notes == "### Added\n\n- one\n\n### Removed\n\n- two\n"
    assert git(tree, "worktree", "list").count("\n") == 0


def test_the_pages_of_a_release_say_how_to_install_it_and_no_page_says_that_there_is_none() -> None:
    """Those of this tree, before the first release and after it."""
    found = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.glob("*.md")}
    found |= {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.glob("docs/**/*.md")}
    pages = {name: published(name, text) if name in PUBLISHED else text for name, text in found.items()}
    assert set(PUBLISHED) <= set(pages)
    assert "pip install 'pyspark-stream-connectors[" in pages["README.md"]
    del pages["CONTRIBUTING.md"]  # it says how that is
    said = re.compile(r"\b[Nn]o release yet|not yet on a package index|first release will be", re.IGNORECASE)
    assert [name for name, text in pages.items() if said.search(text)] == []


def test_a_tagged_release_is_built_from_its_commit_as_it_stands(tree: Path) -> None:
    first = prepare(tree, "", "2026-12-31")
    git(tree, "checkout", "--quiet", first.branch)
    git(tree, "tag", first.tag)
    again = prepare(tree, VERSION, "2027-01-01")
    assert (again.commit, again.branch, again.notes, again.date) == (first.commit, "", first.notes, first.date)


def _untracked(tree: Path) -> None:
    (tree / "notes.txt").touch()


def _tagged(tree: Path) -> None:
    git(tree, "tag", f"v{VERSION}")
    change(tree, "LICENSE", "Apache", "apache")


def _tagged_too_early(tree: Path) -> None:
    git(tree, "tag", "--annotate", "--message", "x", f"v{VERSION}")


def _two_versions(tree: Path) -> None:
    change(tree, "conda/autoload.yaml", f'version: "{VERSION}"', 'version: "9.9.9"')


def _odd_version(tree: Path) -> None:
    for name in ("conda/autoload.yaml", "conda/recipe.yaml"):
        change(tree, name, f'version: "{VERSION}"', 'version: "1.0-rc1"')
    for name in ("connectors", "autoload/stream_connectors_autoload"):
        change(tree, f"{name}/__init__.py", f'__version__ = "{VERSION}"', '__version__ = "1.0-rc1"')


def _released_before(tree: Path) -> None:
    change(tree, "CHANGELOG.md", "\n### Removed", f"\n## [{VERSION}] - 2026-01-01\n\n### Removed")


def _nothing_to_say(tree: Path) -> None:
    text = (tree / "CHANGELOG.md").read_text(encoding="utf-8")
    change(tree, "CHANGELOG.md", text, text.partition("## [Unreleased]\n")[0] + "## [Unreleased]\n")


def _other_sentence(tree: Path) -> None:
    change(tree, "README.md", PUBLISHED["README.md"][0][0], " In a clone:")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_untracked, "not committed"),
        (_tagged, "exists, at another commit"),
        (_tagged_too_early, "unreleased changes"),
        (_two_versions, "must name one version"),
        (_odd_version, "1.0-rc1 is no version as PEP 440 writes it"),
        (_released_before, "both"),
        (_nothing_to_say, "no section"),
        (_other_sentence, "README.md does not have this text"),
    ],
)
def test_a_tree_that_cannot_be_released_is_refused(tree: Path, spoil: Callable[[Path], None], said: str) -> None:
    spoil(tree)
    head = git(tree, "rev-parse", "HEAD")
    with pytest.raises(ReleaseError, match=said):
        prepare(tree, "", "2026-12-31")
    assert git(tree, "rev-parse", "HEAD", "--branches").split() == [head, head]


def test_another_version_than_the_trees_is_refused(tree: Path) -> None:
    with pytest.raises(ReleaseError, match=f"9.9.9 was asked for, and the tree is {VERSION}"):
        prepare(tree, "9.9.9", "2026-12-31")


def test_the_notes_are_the_section_of_the_version() -> None:
    text = "# C\n\n## [Unreleased]\n\n- three\n\n## [0.2.0] - 2026-12-01\n\n- two\n\n## [0.1.0] - 2026-11-01\n\n- one\n"
    assert [notes_of(text, version) for version in ("0.2.0", "0.1.0")] == ["- two\n", "- one\n"]
    assert notes_of(released(text, "0.3.0", "2027-01-01"), "0.3.0") == "- three\n"
    for version in ("0.4.0", "0.2"):
        with pytest.raises(ReleaseError, match="no section"):
            notes_of(text, version)


def test_both_distributions_of_this_tree_have_the_same_bytes_twice_and_no_fault(tmp_path: Path) -> None:
    built = build_twice(tmp_path, "HEAD")
    assert len(built.files) == 4
    assert faults(built) == []


def test_a_build_that_depends_on_the_machine_is_refused(tree: Path, tmp_path: Path) -> None:
    hook = "[tool.hatch.build.targets.wheel.hooks.custom]\n"
    (tree / "hatch_build.py").write_text(
        "import os\nfrom hatchling.builders.hooks.plugin.interface import BuildHookInterface as Hook\n\n"
        "class Zone(Hook):\n    def initialize(self, version, build_data):\n"
        '        open("zone", "w").write(os.environ["TZ"])\n'
        '        build_data["force_include"]["zone"] = "connectors/zone"\n'
    )
    git(tree, "add", ".")
    change(tree, "pyproject.toml", "[tool.hatch.build.targets.sdist]\n", f"{hook}\n[tool.hatch.build.targets.sdist]\n")
    with pytest.raises(ReleaseError, match=r"py3-none-any\.whl has other bytes"):
        build_twice(tmp_path / "builds", "HEAD", root=tree)


@pytest.fixture
def built(tree: Path, tmp_path: Path) -> Built:
    """A build in which nothing is wrong."""
    found = build_twice(tmp_path / "builds", "HEAD", root=tree)
    assert faults(found) == []
    return found


def alter_wheel(path: Path, alter: Callable[[str, bytes], bytes | None], **more: str) -> None:
    """Write a wheel again, with some files altered, left out or added."""
    with ZipFile(path) as archive:
        files = {name: alter(name, archive.read(name)) for name in archive.namelist()}
    with ZipFile(path, "w") as archive:
        for name, data in {**files, **more}.items():
            if data is not None:
                archive.writestr(name, data)


def alter_sdist(path: Path, name: str, data: bytes | None) -> None:
    """Write an sdist again, with one file altered, left out or added."""
    root = path.name.removesuffix(".tar.gz")
    with tarfile.open(path) as archive:
        members = [each for each in archive.getmembers() if each.name != f"{root}/{name}"]
        files = [(each, archive.extractfile(each)) for each in members]
        inside = [(each, file.read() if file else b"") for each, file in files]
    with tarfile.open(path, "w:gz") as archive:
        for each, content in inside:
            archive.addfile(each, io.BytesIO(content))
        if data is not None:
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def dropped(ending: str) -> Callable[[str, bytes], bytes | None]:
    return lambda name, data: None if name.endswith(ending) else data


def replaced(ending: str, before: bytes, after: bytes) -> Callable[[str, bytes], bytes]:
    return lambda name, data: data.replace(before, after) if name.endswith(ending) else data


@pytest.mark.parametrize(
    ("alter", "added", "said"),
    [
        (dropped("py.typed"), {}, "connectors/py.typed is missing"),
        (dropped("licenses/LICENSE"), {}, "licenses/LICENSE is missing"),
        (dropped("nothing"), {"tests/test_one.py": ""}, "tests/test_one.py is too much"),
        (replaced("licenses/LICENSE", b"Apache", b"Other"), {}, "its license is not that of the tree"),
        (replaced("codes.toml", b"[", b" ["), {}, "connectors/core/errors/codes.toml differs"),
        (replaced("METADATA", b"License-Expression: Apache-2.0", b"License-Expression: MIT"), {}, "license_expression"),
        (replaced("METADATA", b"Requires-Python: >=3.11", b"Requires-Python: >=3.9"), {}, "requires_python"),
        (replaced("METADATA", b"Provides-Extra: kafka", b"Provides-Extra: kafkas"), {}, "provides_extra"),
        (replaced("METADATA", b"Version: 0", b"Version: zero."), {}, "'zero."),
    ],
)
def test_a_wrong_wheel_is_found(
    built: Built, alter: Callable[[str, bytes], bytes | None], added: dict[str, str], said: str
) -> None:
    alter_wheel(built.wheels[PACK], alter, **added)
    assert said in "\n".join(faults(built))


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("LICENSE", None, "LICENSE is not in the sdist"),
        ("connectors/py.typed", None, "connectors/py.typed is not in the sdist"),
        (
            "connectors/__init__.py",
            f'__version__ = "{VERSION}"\n'.encode(),
            "of the wheel that the sdist gives differs",
        ),
        ("key.txt", b"x", "key.txt is in the sdist and not in the tree"),
    ],
)
def test_a_wrong_sdist_is_found(built: Built, name: str, data: bytes | None, said: str) -> None:
    alter_sdist(built.sdists[PACK], name, data)
    assert said in "\n".join(faults(built))


def test_an_sdist_with_a_link_is_refused(built: Built) -> None:
    path = built.sdists[PACK]
    link = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/link")
    link.type, link.linkname = tarfile.SYMTYPE, "LICENSE"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(link)
    with pytest.raises(ReleaseError, match="holds links"):
        faults(built)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("at /ho" + "me/ann/file", "a path of one machine"),
        ("-----BEGIN PRIVATE " + "KEY-----\n" + "A" * 64, "a private key"),
        ('"-----BEGIN RSA PRIVATE ' + "KEY-----\\n" + "A" * 64, "a private key"),
        ("key = AK" + "IA" + "Q" * 16, "a key of AWS"),
        ("gh" + "p_" + "a" * 36, "a token of GitHub"),
        ("py" + "pi-AgE" + "a" * 60, "a token of an index"),
    ],
)
def test_what_no_file_may_hold_is_found(text: str, said: str) -> None:
    [found] = faults_of_text({"one.py": text.encode(), "two.py": b"AKIAIOSFODNN7EXAMPLE at ~/home/x"})
    assert found.startswith(f"one.py holds {said}")


@pytest.mark.long  # it installs into twelve environments
def test_what_does_not_work_once_it_is_installed_is_found(built: Built, tmp_path: Path) -> None:
    """The wheels and sdists of the small tree have no command line; those of this one have."""
    found = faults_of_installs(tmp_path / "small", built, VERSION)
    assert {line.partition(": ")[0] for line in found} == {"wheel", "wheel[cli]", "sdist", "sdist[cli]"}
    assert [line for line in found if not re.match(r"\S+: connectors ", line)] == []
    whole = build(tmp_path / "build")
    assert faults_of_installs(tmp_path / "whole", whole, VERSION) == []
    assert len(faults_of_installs(tmp_path / "other", whole, "9.9.9")) == 6  # each import, and connectors --version


RELEASE = Release("0.1.0", "a" * 40, "", 1_800_000_000, "notes")


def test_the_statement_of_origin_names_files_commit_and_builder_and_no_machine(tmp_path: Path) -> None:
    file = tmp_path / "one.whl"
    file.write_bytes(b"wheel")
    by_hand = provenance(RELEASE, [file], {})
    assert by_hand["_type"] == "https://in-toto.io/Statement/v1"
    assert by_hand["predicateType"] == "https://slsa.dev/provenance/v1"
    assert by_hand["subject"] == [{"name": "one.whl", "digest": {"sha256": hashlib.sha256(b"wheel").hexdigest()}}]
    source = by_hand["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    assert source["digest"] == {"gitCommit": "a" * 40}
    assert str(tmp_path) not in json.dumps(by_hand)
    environ = {"GITHUB_ACTIONS": "true", "GITHUB_SERVER_URL": "https://git.test", "GITHUB_REPOSITORY": "a/b"}
    environ |= {"GITHUB_REF": "refs/tags/v0.1.0", "GITHUB_RUN_ID": "7"}
    details = provenance(RELEASE, [file], environ)["predicate"]["runDetails"]
    assert details["builder"]["id"] == "https://git.test/a/b/.github/workflows/release.yml@refs/tags/v0.1.0"
    assert details["metadata"]["invocationId"] == "https://git.test/a/b/actions/runs/7"


def test_sha256sum_takes_the_checksums_and_finds_an_altered_file(tmp_path: Path) -> None:
    file = tmp_path / "one.whl"
    file.write_bytes(b"wheel")
    (tmp_path / "SHA256SUMS").write_text(checksums([file]))
    check = ("sha256sum", "--check", "--strict", "SHA256SUMS")
    assert run(*check, cwd=tmp_path) == "one.whl: OK\n"
    file.write_bytes(b"wheal")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_the_page_for_agents_is_short_and_its_copy_on_the_site_leads_to_pages(tmp_path: Path) -> None:
    agents = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    assert agents.count("\n") <= 200
    text = llms_text(agents, "A summary.")
    assert text.startswith("# Write a job with pyspark-stream-connectors\n\n> A summary.\n\n")
    assert "<!--" not in text
    linked = re.findall(r"\]\(([^)#]+)", text)
    assert len(linked) > 10
    assert [link for link in linked if not (ROOT / "docs" / link).with_suffix(".md").is_file()] == []
    for version in ("0.1.0", "0.2.0", "0.3.0rc1"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "objects.inv").touch()
        (tmp_path / version / "llms.txt").write_text(f"{version} [a](how-to/a.html#b) [c](https://c.test)")
    list_versions(tmp_path)
    assert (tmp_path / "llms.txt").read_text() == "0.2.0 [a](0.2.0/how-to/a.html#b) [c](https://c.test)"


# The workflow


def steps(job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = JOBS[job]["steps"]
    return found


def test_each_action_of_the_workflow_is_pinned_to_a_commit_and_says_its_version() -> None:
    lines = [line.strip() for line in WORKFLOW.splitlines() if "uses:" in line]
    assert len(lines) == sum("uses" in step for job in JOBS for step in steps(job)) > 8
    assert [line for line in lines if not re.fullmatch(r"- uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_each_job_of_the_workflow_has_the_permissions_that_it_needs_and_no_more() -> None:
    assert yaml.safe_load(WORKFLOW)["permissions"] == {}
    assert {name: job["permissions"] for name, job in JOBS.items()} == {
        "build": {"contents": "read"},
        "attest": {"attestations": "write", "contents": "read", "id-token": "write"},
        "publish": {"id-token": "write"},
        "conda": {"contents": "read", "id-token": "write"},
        "release": {"contents": "write"},
        "site": {"id-token": "write", "pages": "write"},
    }
    assert "secrets." not in WORKFLOW


def test_what_publishes_builds_nothing_and_waits_for_what_was_checked() -> None:
    assert {name: job.get("needs") for name, job in JOBS.items()} == {
        "build": None,
        "attest": "build",
        "publish": "attest",
        **dict.fromkeys(("conda", "release", "site"), "publish"),
    }
    calls = [name for name in JOBS for step in steps(name) if "./dev" in step.get("run", "")]
    assert set(calls) == {"build"}
    uploaded = {step["with"]["name"] for name in JOBS for step in steps(name) if "upload-artifact" in str(step)}
    taken = {step["with"]["name"] for name in JOBS for step in steps(name) if "download-artifact" in str(step)}
    assert uploaded == taken == {"release"}


def test_the_workflow_calls_verbs_of_dev_that_exist_and_starts_on_tags_only() -> None:
    text = "\n".join(step["run"] for name in JOBS for step in steps(name) if "run" in step)
    assert violations(Page(Path("release.yml"), f"```sh\n{text}\n```")) == []
    assert {"./dev release", "./dev docs"} == {" ".join(words) for words in re.findall(r"(\./dev) (\w+)", text)}
    assert yaml.safe_load(WORKFLOW)[True] == {"push": {"tags": ["v[0-9]*"]}}  # YAML 1.1 takes `on` for true
    # What a tag is called reaches a shell as a variable, never as a part of its program.
    assert "${{" not in text


def test_each_distribution_is_published_by_an_environment_of_its_own_that_the_page_names() -> None:
    parts = JOBS["publish"]["strategy"]["matrix"]["include"]
    assert [part["distribution"] for part in parts] == [PACK, f"{PACK}_autoload"]
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## Release\n")[2].partition("\n## ")[0]
    environments = {part["environment"] for part in parts} | {JOBS[job]["environment"] for job in ("conda", "site")}
    assert len(environments) == 4
    assert [name for name in environments if f"`{name}`" not in page] == []
    assert "CONDA_CHANNEL" in page
