"""What ptars writes in its own way, each shown to be so, and each guard shown to hold; see `test_decoder`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from ptars import HandlerPool, PtarsConfig

from connectors.protobuf.errors import ProtobufAnalysisError, ProtobufDataError
from connectors.protobuf.worker import Engine
from tests.support.protobuf_rig import Rig

FAST = Rig(Engine.FAST)


def handler(rig: Rig, message: str, **config: Any) -> Any:
    """Ptars as it is, for a message."""
    descriptor = rig.schema.find(message)
    return HandlerPool([descriptor.file], PtarsConfig(**config)).get_for_message(descriptor)


def encoded_by_ptars(rig: Rig, message: str, **columns: pa.Array) -> bytes:
    batch = pa.RecordBatch.from_pydict(columns)
    found: bytes = handler(rig, message).record_batch_to_array(batch)[0].as_py()
    return found


def test_trap_14_nothing_is_lost_in_silence_on_encode() -> None:
    assert encoded_by_ptars(FAST, "Basic", id=pa.array([5], pa.int32())) == b""
    assert encoded_by_ptars(FAST, "Basic", id=pa.array(["5"])) == b""
    assert encoded_by_ptars(FAST, "Basic", strange=pa.array([5])) == b""
    for kind, value in ((pa.int32(), 5), (pa.string(), "5")):
        with pytest.raises(ProtobufAnalysisError, match="CANNOT_CONVERT_SQL_TYPE"):
            FAST.encode("Basic", [{"id": value}], pa.struct([("id", kind)]))
    with pytest.raises(ProtobufAnalysisError, match="NO_SQL_TYPE_IN_PROTOBUF_SCHEMA"):
        FAST.encode("Basic", [{"strange": 5}], pa.struct([("strange", pa.int32())]))
    with pytest.raises(ProtobufDataError, match="ENUM_TYPE"):
        FAST.encode("Basic", [{"color": "PURPLE"}], pa.struct([("color", pa.string())]))


def test_trap_19_numbers_that_are_not_packed_are_written_by_the_reference() -> None:
    kind = pa.struct([("unpacked", pa.list_(pa.int32()))])
    assert encoded_by_ptars(FAST, "Lists", unpacked=pa.array([[1, 2]], pa.list_(pa.int32()))) == bytes.fromhex(
        "8a01020102"
    )
    assert FAST.encode("Lists", [{"unpacked": [1, 2]}], kind) == [bytes.fromhex("880101880102")]


def test_trap_20_negative_zero_is_written() -> None:
    assert encoded_by_ptars(FAST, "Scalars", double_value=pa.array([-0.0])) == b""
    kind = pa.struct([("double_value", pa.float64()), ("float_value", pa.float32())])
    rows = [{"double_value": -0.0, "float_value": -0.0}, {"double_value": 0.0, "float_value": 0.0}]
    assert FAST.encode("Scalars", rows, kind) == [bytes.fromhex("6500000080 690000000000000080"), b""]
