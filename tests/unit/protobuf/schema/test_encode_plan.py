"""The columns of a struct matched with the fields of a message."""

from __future__ import annotations

import pyarrow as pa
import pytest

from connectors.protobuf.errors import ProtobufAnalysisError
from connectors.protobuf.worker import Engine
from tests.support.protobuf_rig import Rig


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.binary(), pa.map_(pa.string(), pa.string()), pa.null()])
@pytest.mark.parametrize("engine", [Engine.PYTHON, Engine.AUTO])
def test_a_column_that_is_no_struct_is_an_error_that_says_so(engine: Engine, kind: pa.DataType) -> None:
    with pytest.raises(ProtobufAnalysisError, match=r"^\[UNABLE_TO_CONVERT_TO_PROTOBUF_MESSAGE_TYPE\]") as caught:
        Rig(engine).encode("Basic", [None], kind)
    assert "(the column is not a STRUCT). " in str(caught.value)
    assert "put the message's columns into one" in str(caught.value)
