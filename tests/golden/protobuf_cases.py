"""The cases of the golden corpus of connectors.protobuf: what is asked. Answers are in tests/golden/protobuf/*.json."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """One question.

    Attributes:
        name: what it shows.
        schema: the file in proto/, without its suffix.
        message: the message.
        decode: messages, as hexadecimal digits, one a row.
        encode: a SQL expression of a struct, for to_protobuf.
        options: of from_protobuf.
        jvm: whether Spark 3.4.1 knows all that is asked; its options are mode and recursive.fields.max.depth.
        differs: why our answer is another one on purpose; empty if it is not.
    """

    name: str
    schema: str
    message: str
    decode: tuple[str, ...] = ()
    encode: str = ""
    options: dict[str, str] = field(default_factory=dict)
    jvm: bool = True
    differs: str = ""


def decode(name: str, message: str, *rows: str, schema: str = "behaviours", jvm: bool = True, **options: str) -> Case:
    named = {key.replace("_", "."): value for key, value in options.items()}
    return Case(name, schema, message, tuple(row.replace(" ", "") for row in rows), options=named, jvm=jvm)


def wrapped(name: str, message: str, *rows: str) -> Case:
    why = "Spark multiplies seconds by 1000 without a look, and gives another time; here it is a bad row"
    return Case(name, "behaviours", message, tuple(row.replace(" ", "") for row in rows), differs=why)


def encode(name: str, message: str, expression: str, *, schema: str = "behaviours", jvm: bool = True) -> Case:
    return Case(name, schema, message, encode=expression, jvm=jvm)


TWO = "behaviours2"
ALL_SCALARS = (
    "0801 10ffffffffffffffffff01 1809 2005 2d06000000 35f9ffffff 3808 4011 4809 510a00000000000000 "
    "59f5ffffffffffffff 650000003f 69000000000000f83f 720161 7a02ff00 800105 880100 920100"
)

CASES = (
    decode("every scalar kind", "Scalars", ALL_SCALARS, ""),
    decode("explicit zeros count as absent", "Scalars", "0800 1000 650000000069000000000000000072007a00800100"),
    decode("explicit zeros of optional fields are there", "Scalars", "880100 920100"),
    decode("-0.0 is something", "Scalars", "6500000080 690000000000000080"),
    decode("a number that wraps", "Scalars", "20ffffffff0f", "48ffffffffffffffffff01", "2dffffffff"),
    decode("an int32 of more than 32 bits is cut", "Scalars", "1080808080 10", "10ffffffff0f"),
    decode("the last of several values stands", "Scalars", "10011002", "10011000"),
    decode("an unknown value of an open enum", "Basic", "1807", "18ffffffffffffffffff01"),
    decode("an unknown value in a list", "Lists", "82010300 0107"),
    decode("packed and not packed lists", "Lists", "1203010203", "100110021003", "1202010210 03", "8801018801 02"),
    decode("text that is not UTF-8", "Basic", "1202ffff"),
    decode("text that is not UTF-8 in proto2", "Plain", "1203ff41fe", schema=TWO),
    decode("another wire type at the root", "Basic", "0a0161", "1005", "1d00000000"),
    decode("another wire type inside", "RepeatedMessage", "0a030a0161", "0a0508051001"),
    decode("garbage", "Basic", "ff", "08", "0a056162", "03", "00", "0000000001000801"),
    decode("garbage under PERMISSIVE", "Basic", "0801", "ff", mode="PERMISSIVE", jvm=False),
    decode("unknown fields are dropped", "OldProducer", "0a016b 1005 1801 20012a020801"),
    decode("an unknown group is dropped", "Basic", "0801 a301 0801 a401"),
    decode("old producer, new consumer", "NewConsumer", "0a016b"),
    decode("a message that comes twice is merged", "HoldsExtended", "0a030a0161 0a030a0162", schema=TWO),
    decode("a message that is there and empty", "Deep", "0a00", "0a020a00"),
    decode("maps", "Maps", "0a060a0161120162", "12040801 1002", "62080801 1204 0805 1801"),
    decode("map entries without key or value", "Maps", "0a00", "0a030a0161", "1200", "62020801", "6a00"),
    decode("a map value of another wire type", "Maps", "12050801120161"),
    decode("a oneof whose members both come", "OneOf", "0a016b 1005 1a0174", "0a016b 1a0174 1005", "2202 0801 1000"),
    decode("times", "Times", "0a0808 80e2cfaa06 1015", "0a0b08ffffffffffffffffff01", "0a00", "0a0710ffc7ebdb03"),
    decode("negative nanos are cut towards zero", "Times", "0a0b10a4f4ffffffffffffff01"),
    wrapped("a time that does not fit", "Times", "0a0a0880808080808080 8020"),
    decode("durations", "Times", "120208 0a", "121608ffffffffffffffffff01 1080b6ca91feffffffff01"),
    decode("recursion at depth 1", "Person", "0a0161 12030a0162", recursive_fields_max_depth="1"),
    decode("recursion at depth 2", "Person", "0a0161 12080a0162 12030a0163", recursive_fields_max_depth="2"),
    decode("zeros of proto2", "Plain", "0800 1200 1800 290000000000000000", "", schema=TWO),
    decode("declared defaults", "Defaults", "", "0800 1200", schema=TWO),
    decode("required fields", "Required", "0801", "08011200", "0801 1200 1a00", schema=TWO),
    decode(
        "closed enums", "Closed", "0801", "0807", "1007", "1203010702", "1a0408071005", "22050a01611007", schema=TWO
    ),
    decode("a group", "Group", "0805 13 0a0161 14", schema=TWO),
    decode("extensions are dropped", "Extended", "0a016e a2060173", schema=TWO),
    decode("wrappers as structs", "Wrappers", "12020801", "1200", "3203 0a0161"),
    decode("emit defaults", "NewConsumer", "", "1000", emit_default_values="true", jvm=False),
    decode("enums as ints", "Basic", "1805", "1807", enums_as_ints="true", jvm=False),
    decode("upcast", "Unsigned", "08ffffffff0f 10ffffffffffffffffff01", upcast_unsigned_ints="true", jvm=False),
    decode("unwrap", "Wrappers", "12020801", "1200", "", unwrap_primitive_wrapper_types="true", jvm=False),
    decode("retain empty", "HoldsNothing", "0a016e1200", retain_empty_message_types="true", jvm=False),
    encode("a missing column is left out", "Basic", "named_struct('id', 1L)"),
    encode("zeros are left out", "Basic", "named_struct('id', 0L, 'text', '', 'color', 'RED')"),
    encode("zeros of optional fields are written", "Scalars", "named_struct('optional_int32', 0)"),
    encode("-0.0 is written", "Scalars", "named_struct('double_value', cast('-0.0' as double))"),
    encode("names match in any case", "Basic", "named_struct('ID', 1L)"),
    encode("NULL is left out", "Basic", "named_struct('id', cast(null as bigint), 'text', 'x')"),
    encode("a bad enum name", "Basic", "named_struct('color', 'PURPLE')"),
    encode("a column that the message has not", "Basic", "named_struct('zz', 1)"),
    encode("a column of another type", "Basic", "named_struct('id', 1)"),
    encode("a oneof, the last column wins", "OneOf", "named_struct('number', 1, 'text', 'x')"),
    encode("a oneof, turned round", "OneOf", "named_struct('text', 'x', 'number', 1)"),
    encode("a NULL in a map is the default", "Maps", "named_struct('int32_int32', map(1, cast(null as int)))"),
    encode("a zero in a map is written", "Maps", "named_struct('int32_int32', map(0, 0))"),
    encode("lists are packed", "Lists", "named_struct('int32_value', array(1, 2), 'unpacked', array(1, 2))"),
    encode("a missing required column", "Required", "named_struct('id', 1L)", schema=TWO),
    encode(
        "NULL in required columns",
        "Required",
        "named_struct('id', cast(null as bigint), 'name', cast(null as string))",
        schema=TWO,
    ),
    encode("a time of whole milliseconds", "Times", "named_struct('time', timestamp'2020-01-01 00:00:00.123')"),
    encode(
        "a time with microseconds", "Times", "named_struct('time', timestamp'2020-01-01 00:00:00.123456')", jvm=False
    ),
    encode("a duration", "Times", "named_struct('duration', interval '-1.5' second)"),
    encode("nested messages", "Deep", "named_struct('middle', named_struct('bottom', named_struct('number', 3)))"),
    encode("a NULL message", "Deep", "named_struct('middle', cast(null as struct<text:string>), 'text', 'a')"),
    encode("an enum number", "Basic", "named_struct('color', 5)", jvm=False),
)
