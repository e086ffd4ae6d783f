"""Run the command line: ``connectors``, ``python -m connectors.cli``; without its extra, say what to install."""

from __future__ import annotations

import sys
from typing import Final

from connectors.core.formats import not_installed, packages_missing

_NEEDED: Final = ("typer", "rich", "pydantic")
_NOT_CARRIED_OUT: Final = 2


def main() -> None:
    """Run the command line; end with 2 and a named error where its packages are not installed."""
    if missing := not_installed(_NEEDED):
        sys.stderr.write(f"{packages_missing(missing, 'the command line', 'cli')}\n")
        sys.exit(_NOT_CARRIED_OUT)
    from connectors.cli.main import main as run  # noqa: PLC0415 - needs the extra cli

    run()


if __name__ == "__main__":
    main()
