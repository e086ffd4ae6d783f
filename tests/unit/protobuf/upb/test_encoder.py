"""The choice of an encoder, and what is the same in each of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from connectors.protobuf.errors import ProtobufDataError
from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.ptars.encoder import PtarsEncoder
from connectors.protobuf.upb.encoder import AdaptiveEncoder, UpbEncoder
from connectors.protobuf.worker import EncodeCall, Engine
from tests.support.protobuf_rig import Rig

COLUMNS = 400


def message(rig: Rig) -> bytes:
    made = rig.type("Wide")()
    for number in range(1, COLUMNS + 1):
        name = f"Field_{number}"
        if number % 4 == 3:
            getattr(made, name).append(number)
        else:
            setattr(made, name, str(number) if number % 4 == 0 else number)
    return bytes(made.SerializeToString(deterministic=True))


@pytest.mark.parametrize(("rows", "kind"), [(1, UpbEncoder), (32, UpbEncoder), (33, PtarsEncoder)])
def test_auto_takes_the_encoder_that_is_fastest_for_the_size_of_a_batch(rows: int, kind: type) -> None:
    rig = Rig(Engine.AUTO)
    encoder = EncodeCall(rig.data, "behaviours.Basic", ProtobufOptions(), Engine.AUTO).encoder
    assert isinstance(encoder, AdaptiveEncoder)
    encoder.encode(pa.array([{"id": 1}]))
    assert type(encoder.chosen(pa.array([{"id": 1}] * rows))) is kind


def test_a_row_that_cannot_be_encoded_has_the_error_of_the_reference() -> None:
    kind = pa.struct([("id", pa.int64()), ("color", pa.string())])
    texts = []
    for engine in (Engine.AUTO, Engine.PYTHON):
        rig = Rig(engine)
        rig.encode("Basic", [{"id": 1, "color": "RED"}], kind)
        with pytest.raises(ProtobufDataError, match="PINK") as caught:
            rig.encode("Basic", [{"id": 1, "color": "RED"}, {"id": 2, "color": "PINK"}], kind)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_columns_of_one_field_and_times_that_python_has_not_are_encoded_in_small_batches() -> None:
    """A struct may have two columns of one name, and a Timestamp goes beyond the year 9999."""
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    late = pa.array([{"time": 1 << 60}], pa.struct([("time", pa.int64())]))
    late = late.view(pa.struct([("time", pa.timestamp("us", "UTC"))]))
    for message, structs in (("Basic", twice), ("Times", late)):
        found = []
        for engine in (Engine.AUTO, Engine.PYTHON):
            rig = Rig(engine)
            call = EncodeCall(rig.data, f"behaviours.{message}", ProtobufOptions(), engine)
            found += [call(structs).to_pylist() for _ in range(2)]
        assert found == [found[0]] * 4
        assert found[0][0]
