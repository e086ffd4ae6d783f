"""The program that runs protoc; `connectors.core.processes.protoc` starts this text by ``python -P -c``.

It imports nothing of this pack, so that it starts soon. Its standard input is one JSON object: the arguments, and the
limits by their names in `resource`. It ends with 0, with 65 if protoc refuses its input, or by a signal.
"""

import json
import resource
import sys
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

_REFUSED = 65  # EX_DATAERR


def limit(name: str, value: int) -> None:
    """Set a limit of this process, no higher than what the system allows it; a Mac has none for memory."""
    kind = getattr(resource, name)
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(kind, (value, value))
    except ValueError:  # EINVAL
        if name != "RLIMIT_AS":
            raise


if __name__ == "__main__":
    order = json.load(sys.stdin)
    included = Path(protoc.__file__).parent / "_proto"
    for kind_name, most in order["limits"].items():
        limit(kind_name, most)
    try:
        sys.exit(_REFUSED if protoc.main(["protoc", *order["arguments"], f"-I{included}"]) else 0)
    except MemoryError:
        sys.stderr.write("it needs too much memory\n")
        sys.exit(_REFUSED)
