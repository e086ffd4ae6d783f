"""What a user gets by installing the pack with all extras, and under which licenses; asks nobody.

Known weaknesses are another matter: they need a service that knows them, as ``pip-audit -r requirements.lock`` does.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib.metadata import Distribution, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["brought", "goes_with_apache", "license_of"]

_GOOD = re.compile(
    r"Apache|\b(?:MIT|0?BSD|PSF|ISC)\b|Python Software Foundation|MPL[- ]2\.0|Mozilla Public License 2\.0",
    re.IGNORECASE,
)
_BAD = re.compile(r"(?<!L)GPL|General Public License|Commons Clause|SSPL|BUSL|Proprietary", re.IGNORECASE)


def brought(name: str, extras: frozenset[str]) -> Mapping[str, Distribution]:
    """The installed distributions that one needs, itself among them, by canonical name.

    Args:
        name: of the distribution.
        extras: of it.

    Raises:
        importlib.metadata.PackageNotFoundError: one is not installed.
    """
    found: dict[str, Distribution] = {}
    open_ends, seen = [(name, extras)], set()
    while open_ends:
        end = open_ends.pop()
        if end in seen:
            continue
        seen.add(end)
        found[canonicalize_name(end[0])] = each = distribution(end[0])
        for requirement in map(Requirement, each.requires or []):
            markers = [requirement.marker is None, *(_holds(requirement, extra) for extra in (end[1] or {""}))]
            if any(markers):
                open_ends.append((requirement.name, frozenset(requirement.extras)))
    return found


def _holds(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is not None and requirement.marker.evaluate({"extra": extra})


def license_of(found: Distribution) -> str:
    """What the metadata of a distribution say of its license, in one line."""

    def values(field: str) -> list[str]:
        return found.metadata.get_all(field) or []

    classifiers = [text for text in values("Classifier") if text.startswith("License ::")]
    said = [*values("License-Expression"), *(text.partition("\n")[0] for text in values("License")), *classifiers]
    return " | ".join(text for text in said if text)


def goes_with_apache(text: str) -> bool:
    """Whether it is a license that somebody has looked at, and that a work under Apache-2.0 may depend on."""
    return bool(_GOOD.search(text)) and not _BAD.search(text)


def main() -> int:
    """Print all; 1 if one has to be looked at."""
    all_of_it = brought("pyspark-stream-connectors", frozenset({"all", "spark", "testing"}))
    bad = 0
    for name, found in sorted(all_of_it.items()):
        text = license_of(found)
        good = goes_with_apache(text)
        bad += not good
        sys.stdout.write(f"{'' if good else 'LOOK AT '}{name} {found.version}: {text or 'nothing is said'}\n")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
