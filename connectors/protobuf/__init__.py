"""Protobuf messages in columns, without a jar: Spark's ``from_protobuf`` and ``to_protobuf``.

    from connectors.protobuf import from_protobuf, to_protobuf

`functions.py` is where to begin; then `plan.py` (schema and rules), `codec.py` and `encode.py` (the reference codec, on
upb), `codec_fast.py` and `encode_fast.py` (the fast one, on ptars), `codec_rows.py` and `encode_rows.py` (for a few
rows; they also choose by the size of a batch), and `registry.py` (Confluent's wire format).
"""

from __future__ import annotations

from connectors.core.extras import extra_imports

with extra_imports("protobuf", "connectors.protobuf"):
    from connectors.protobuf.functions import from_protobuf, to_protobuf

__all__ = ["from_protobuf", "to_protobuf"]
