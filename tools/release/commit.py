"""The commit that a release is built from: its changelog names the version, and its pages say how to install it.

A version that is not released has its changes under ``Unreleased``. The commit that gives them the version and the date
is made in a worktree, on the branch ``release-VERSION``: the tree of the caller stays unchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.version import InvalidVersion, Version

from tools.release.commands import ReleaseError, run

__all__ = ["PUBLISHED", "Release", "notes_of", "prepare", "published", "released"]

VERSIONS = {
    "connectors/__init__.py": r'^__version__ = "(.+)"$',
    "autoload/stream_connectors_autoload/__init__.py": r'^__version__ = "(.+)"$',
    "conda/recipe.yaml": r'^  version: "(.+)"$',
    "conda/autoload.yaml": r'^  version: "(.+)"$',
}
# What pages say until there is a release, and what they say from the first one on.
PUBLISHED = {
    "README.md": (
        (" In a clone, since there is no release yet:", ""),
        (
            "pip install '.[spark,pubsub,fast,cli,testing]' ",
            "pip install 'pyspark-stream-connectors[spark,pubsub,fast,cli,testing]' ",
        ),
        ("./dev broker              # a real", "./dev broker              # in a clone: a real"),
        ("- No release yet, and no known user in production.", "- No known user in production."),
    ),
    "AGENTS.md": (
        (
            "pip install '.[kafka,avro,spark]'    # in a clone: it is not yet on a package index",
            "pip install 'pyspark-stream-connectors[kafka,avro,spark]'",
        ),
    ),
    "docs/index.md": (
        (
            "pip install '.[all,spark,testing]'    # in a clone: it is not yet on a package index",
            "pip install 'pyspark-stream-connectors[all,spark,testing]'",
        ),
    ),
    "docs/how-to/register.md": (
        (
            "pip install ./autoload    # in a clone of this pack; not yet on a package index",
            "pip install pyspark-stream-connectors-autoload",
        ),
    ),
    "CHANGELOG.md": (
        ("The first release will be 0.1.0. This is what it contains.\n\n", ""),
        ("- Not yet on a package index: install from a clone.\n", ""),
    ),
}


@dataclass(frozen=True)
class Release:
    """A version, the commit that it is built from, and the branch that was made for that commit, if one was."""

    version: str
    commit: str
    branch: str
    date: int
    notes: str

    @property
    def tag(self) -> str:
        """The name of its tag."""
        return f"v{self.version}"


def version_of(root: Path) -> str:
    """Return the version that all files of a tree name.

    Raises:
        ReleaseError: they name several, or one that PEP 440 writes differently.
    """
    found = {
        name: match[1]
        for name, pattern in VERSIONS.items()
        for match in [re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)]
        if match
    }
    if len(found) < len(VERSIONS) or len({*found.values()}) > 1:
        raise ReleaseError(f"{', '.join(VERSIONS)} must name one version; they name {found}")
    [version] = {*found.values()}
    try:
        normal = str(Version(version))
    except InvalidVersion:
        normal = ""
    if version != normal:
        raise ReleaseError(f"{version} is no version as PEP 440 writes it: correct it in {', '.join(VERSIONS)}")
    return version


def _section(changelog: str, name: str) -> str | None:
    """Return the text of a section of a changelog; None if there is no such section."""
    match = re.search(rf"^## \[{re.escape(name)}\][^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return match[1].strip() if match else None


def notes_of(changelog: str, version: str) -> str:
    """Return what a changelog says of a version.

    Raises:
        ReleaseError: it says nothing.
    """
    text = _section(changelog, version)
    if not text:
        raise ReleaseError(f"CHANGELOG.md has no section [{version}] with a change in it")
    return text + "\n"


def released(changelog: str, version: str, day: str) -> str:
    """Return a changelog whose unreleased changes are those of a version.

    Args:
        changelog: the text of the file.
        version: of the release.
        day: its date, as ``2026-12-31``.

    Raises:
        ReleaseError: nothing is unreleased, or the version has a section already.
    """
    if _section(changelog, version) is not None:
        raise ReleaseError(
            f"CHANGELOG.md has both [{version}] and unreleased changes: raise the version in {', '.join(VERSIONS)}"
        )
    if not _section(changelog, "Unreleased"):
        raise ReleaseError("CHANGELOG.md has nothing under [Unreleased]: there is nothing to release")
    return changelog.replace("## [Unreleased]\n", f"## [Unreleased]\n\n## [{version}] - {day}\n", 1)


def published(name: str, text: str) -> str:
    """Return a page with its sentences on a pack that is not released replaced; unchanged if it has none of them.

    Args:
        name: of the page, as in `PUBLISHED`.
        text: of the page.

    Raises:
        ReleaseError: it has some of the sentences, or one of them twice.
    """
    counts = {before: text.count(before) for before, _ in PUBLISHED[name]}
    if any(counts.values()) and {*counts.values()} != {1}:
        odd = [before for before, count in counts.items() if count != 1]
        raise ReleaseError(f"{name} does not have this text once: {odd}; correct PUBLISHED in tools/release/commit.py")
    for before, after in PUBLISHED[name]:
        text = text.replace(before, after)
    return text


def prepare(root: Path, wanted: str, day: str) -> Release:
    """Check that a tree can be released, and make the commit for it if its changelog has unreleased changes.

    Args:
        root: the tree.
        wanted: the version that the caller expects; empty for the one that the tree names.
        day: the date of the release.

    Raises:
        ReleaseError: it cannot be released.
    """
    if dirty := run("git", "status", "--porcelain", cwd=root).strip():
        raise ReleaseError(f"the tree has changes that are not committed: commit or stash them\n{dirty}")
    version = version_of(root)
    if wanted and wanted != version:
        raise ReleaseError(f"{wanted} was asked for, and the tree is {version}: {', '.join(VERSIONS)}")
    head = run("git", "rev-parse", "HEAD", cwd=root).strip()
    tagged = run("git", "for-each-ref", "--format=%(*objectname) %(objectname)", f"refs/tags/v{version}", cwd=root)
    if tagged.split()[:1] not in ([], [head]):
        raise ReleaseError(f"the tag v{version} exists, at another commit: raise the version in {', '.join(VERSIONS)}")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    branch = f"release-{version}" if _section(changelog, "Unreleased") else ""
    if branch and tagged:
        raise ReleaseError(f"the tag v{version} stands at a commit with unreleased changes: tag the branch {branch}")
    commit = _commit(root, version, branch, day) if branch else head
    date = int(run("git", "show", "--no-patch", "--format=%ct", commit, cwd=root))
    changelog = run("git", "show", f"{commit}:CHANGELOG.md", cwd=root)
    return Release(version, commit, branch, date, notes_of(changelog, version))


def _commit(root: Path, version: str, branch: str, day: str) -> str:
    """Make the commit of a release in a worktree, let a branch name it, and return it."""
    with TemporaryDirectory(prefix="release-") as folder:
        tree = Path(folder) / "tree"
        run("git", "worktree", "add", "--quiet", "--detach", tree, "HEAD", cwd=root)
        try:
            for name in PUBLISHED:
                text = published(name, (tree / name).read_text(encoding="utf-8"))
                if name == "CHANGELOG.md":
                    text = released(text, version, day)
                (tree / name).write_text(text, encoding="utf-8")
            run("git", "commit", "--quiet", "--all", "--message", f"Release {version}", cwd=tree)
            commit = run("git", "rev-parse", "HEAD", cwd=tree).strip()
        finally:
            run("git", "worktree", "remove", "--force", tree, cwd=root)
    run("git", "branch", "--force", branch, commit, cwd=root)
    return commit
