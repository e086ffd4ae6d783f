"""Topics with several record types: one function decodes them all, and one encodes them.

    from connectors.mixed import from_mixed, to_mixed

`functions` is where to begin; then `members` (the arguments of each type), `selection` (which type a message is of) and
`worker`, which runs the calls of the formats.
"""

from __future__ import annotations

from connectors.core.formats import extra_imports, spark_imports

with spark_imports("connectors.mixed"), extra_imports("avro", "connectors.mixed"):
    from connectors.mixed.functions import from_mixed, to_mixed

__all__ = ["from_mixed", "to_mixed"]
