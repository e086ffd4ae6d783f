"""The process that makes hostile attempts of one kind, from a number on.

python -m tests.chaos.rigs.hostile_job KIND FOLDER --seed SEED --first NUMBER
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.chaos.rigs.hostile_attempts import run_attempts
from tests.chaos.rigs.hostile_bulk import BULK
from tests.chaos.rigs.hostile_messages import MESSAGES
from tests.chaos.rigs.hostile_schemas import SCHEMAS
from tests.chaos.rigs.hostile_services import SERVICES
from tests.chaos.rigs.hostile_storage import STORAGE

KINDS = {**STORAGE, **MESSAGES, **SCHEMAS, **SERVICES, **BULK}
"""All kinds of attempts, by name."""


def main(arguments: list[str]) -> None:
    """Make attempts of the kind that is named."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.rigs.hostile_job")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0, help="the first attempt is made in any case")
    command_line = parser.parse_args(arguments)
    run_attempts(
        KINDS[command_line.kind], command_line.folder, command_line.seed, command_line.first, command_line.seconds
    )


if __name__ == "__main__":
    main(sys.argv[1:])
