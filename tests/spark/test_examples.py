"""The examples run and give what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_protobuf_orders(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("protobuf_orders", ROOT / "examples" / "protobuf_orders.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.main(tmp_path) == [
        {"customer": "ann", "orders": 4, "amount": 50.0},
        {"customer": "bob", "orders": 4, "amount": 50.0},
    ]
