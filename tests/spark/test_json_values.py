"""Which JSON `from_json_registry` takes for a value of each type, in every mode, and what a bad row then has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connectors.json import from_json_registry
from connectors.testing.schema_registry import SchemaRegistryServer

CONNECT = "org.apache.kafka.connect.data."
TEXT, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
TIME, DAY, BYTES = {**TEXT, "format": "date-time"}, {**TEXT, "format": "date"}, {**TEXT, "connect.type": "bytes"}
MILLIS, DAYS = {**INTEGER, "title": f"{CONNECT}Timestamp"}, {**INTEGER, "title": f"{CONNECT}Date"}
CONNECT_TIME = {**INTEGER, "title": f"{CONNECT}Time"}
INT8, INT16, INT32 = ({**INTEGER, "connect.type": kind} for kind in ("int8", "int16", "int32"))
FLOAT = {**NUMBER, "connect.type": "float32"}
DECIMAL = {"title": f"{CONNECT}Decimal", "connect.parameters": {"scale": "2", "connect.decimal.precision": "7"}}
AMOUNT, UNSCALED = {**NUMBER, **DECIMAL}, {**TEXT, "connect.type": "bytes", **DECIMAL}
NO_JSON = "is not JSON of the columns of the schema"


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def map_of(values: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.session.timeZone", "America/New_York")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        yield running


def rows_of(
    spark: SparkSession, server: SchemaRegistryServer, schema: Any, texts: list[str], options: dict[str, str]
) -> list[tuple[Any, str | None]]:
    """Return the JSON that Spark has of each value, in UTC, and its error."""
    number = server.register("values", text=json.dumps(schema), schema_type="JSON")
    messages = [(b"\0" + number.to_bytes(4, "big") + text.encode(),) for text in texts]
    decoded = from_json_registry("value", json.dumps(schema), options, schemaRegistryAddress=server.address)
    frame = spark.createDataFrame(messages, "value binary").coalesce(1).select(decoded.alias("v"))
    fields = "v.value AS value, v.error AS error" if "on.error" in options else "v AS value, NULL AS error"
    table = frame.selectExpr(*fields.split(", ")).selectExpr(
        "to_json(struct(value), map('timeZone', 'UTC', 'ignoreNullFields', 'false')) AS value", "error"
    )
    return [(json.loads(row.value)["value"], row.error) for row in table.collect()]


GOOD: list[tuple[Any, str, Any]] = [
    (TIME, '"2026-01-02T10:15:30Z"', "2026-01-02T10:15:30.000Z"),
    (TIME, '"2026-01-02t10:15:30z"', "2026-01-02T10:15:30.000Z"),
    (TIME, '"2026-01-02T10:15:30.1234567891-18:00"', "2026-01-03T04:15:30.123Z"),
    (TIME, '"2026-01-02T10:15:30-00:00"', "2026-01-02T10:15:30.000Z"),
    (TIME, '"9999-12-31T23:59:59Z"', "9999-12-31T23:59:59.000Z"),
    (TIME, '"0001-01-01T00:00:00Z"', "0001-01-01T00:00:00.000Z"),
    (TIME, "null", None),
    (DAY, '"2024-02-29"', "2024-02-29"),
    (BYTES, '"AQI="', "AQI="),
    (BYTES, '"1234"', "1234"),
    (BYTES, '"true"', "true"),
    (BYTES, '"AQ\\u0049="', "AQI="),
    (BYTES, "null", None),
    (AMOUNT, "1.005", 1.01),
    (AMOUNT, "1e3", 1000.0),
    (AMOUNT, "-9999.99", -9999.99),
    (AMOUNT, "null", None),
    (UNSCALED, '"1234"', -26588.24),
    (UNSCALED, '"AQI="', 2.58),
    (MILLIS, "253402300799999", "9999-12-31T23:59:59.999Z"),
    (MILLIS, "-62135596800000", "0001-01-01T00:00:00.000Z"),
    (DAYS, "2932896", "9999-12-31"),
    (DAYS, "-719162", "0001-01-01"),
    (CONNECT_TIME, "86399999", 86399999),
    (INT8, "127", 127),
    (INT8, "-128", -128),
    (INT16, "-32768", -32768),
    (INT32, "2147483647", 2147483647),
    (INTEGER, "-9223372036854775808", -(2**63)),
    (FLOAT, "3.25", 3.25),
    (NUMBER, "1e308", 1e308),
    (NUMBER, '"Infinity"', "Infinity"),
    (NUMBER, "NaN", "NaN"),
]
NO_TIMES = [
    *("10:15:30", "now", "today", "epoch", "", "2026", "2026-01", "2026-01-02", "2026-01-02T10:15:30"),
    *("2026-01-02 10:15:30Z", "2026-01-02T10:15:60Z", "2026-01-02T24:00:00Z", "2026-02-30T10:15:30Z"),
    *("2026-01-02T10:15Z", "2026-01-02T10:15:30Z\n", " 2026-01-02T10:15:30Z", "2026-01-02T10:15:30ZZ"),
    *("2026-01-02T10:15:30+0100", "2026-01-02T10:15:30+01", "2026-01-02T10:15:30 UTC", "2026-01-02T10:15:30[UTC]"),
    *("2026-01-02T10:15:30+19:00", "+2026-01-02T10:15:30Z", "12026-01-02T10:15:30Z", "0000-06-01T00:00:00Z"),
    *(
        "9999-12-31T23:59:59-01:00",
        "0001-01-01T00:00:00+01:00",
        "\u0662\u0660\u0662\u0666-01-02T10:15:30Z",
        "2026-1-2T10:15:30Z",
    ),
]
NO_DAYS = [
    *("2026-01-02Tjunk", "2026", " 2026-01-02 ", "2026-01-02\n", "today", "now", "epoch", "2026-02-30", "2026-1-2"),
    *("0000-01-01", "10000-01-01", "", "2026-01-02T10:15:30Z"),
]
BAD: list[tuple[Any, list[str], str]] = [
    (TIME, [*map(json.dumps, NO_TIMES), "1767348930", "1.5", "true", "{}", "[]", "NaN"], "a is not a date-time of RFC"),
    (DAY, [*map(json.dumps, NO_DAYS), "20000", "true", "{}"], "a is not a date of RFC 3339"),
    (BYTES, ['"AQI"', '"AQ I="', '"AQI=AQI="', '"AQI=\\n"', '"A==="', '"-_-_"', '"="'], "a is not base64"),
    (BYTES, ['"    "', '"AQID    "', '"AQIDBA "', '"AQID BA="', '"AQ\\t\\n=="', '"A Q="', '"===="'], "a is not base64"),
    (BYTES, ["1234", "true", "12345678", "1.5"], "a is not text"),
    (
        AMOUNT,
        ['"1.5"', '"1,234"', '"1234"', '"\\u0031"', '"-1"', '".5"', '"\\u0661"', '"\u0661"', '",5"', "'5'", '  \n"+5"'],
        "a is a text, and no number",
    ),
    (AMOUNT, ["123456", "1e400", "true", '"NaN"', "NaN", '""'], NO_JSON),
    (UNSCALED, ['"x"', '""', '"AJiWgA=="', json.dumps("A" * 40)], "a is not base64 of a decimal of 7 digits"),
    (UNSCALED, ["1234"], "a is not text"),
    (MILLIS, ["9223372036854775807", "253402300800000", "-62135596800001"], "a is not a number of milliseconds"),
    (MILLIS, ['"1"', "1.0", "9223372036854775808"], NO_JSON),
    (DAYS, ["2932897", "-719163", "2147483647"], "a is not a number of days"),
    (DAYS, ["2147483648", '"1"'], NO_JSON),
    (CONNECT_TIME, ["2147483648", '"10:15:30"'], NO_JSON),
    (INT8, ["128", "255", "-129", "256"], "a is beyond the range of int8"),
    (INT8, ["70000", "1.0", "1e0", "1.5", '"1"'], NO_JSON),
    (INT16, ["32768", "-32769", "1.0"], NO_JSON),
    (INT32, ["2147483648", "1e3"], NO_JSON),
    (INTEGER, ["9223372036854775808", "1.0", "1e3", "1.5", '"1"', "true"], NO_JSON),
    (FLOAT, ["1e39", "-3.5e38"], "a is beyond the range of float"),
    (NUMBER, ["1e400", "-1e400"], "a is beyond the range of double"),
    (NUMBER, ['"1.5"', "true"], NO_JSON),
]


def test_each_type_takes_what_it_can_hold(spark: SparkSession, server: SchemaRegistryServer) -> None:
    schemas = {json.dumps(schema): schema for schema, _, _ in GOOD}
    for key, schema in schemas.items():
        cases = [(text, expected) for each, text, expected in GOOD if json.dumps(each) == key]
        texts = [f'{{"a": {text}}}' for text, _ in cases]
        expected = [({"a": value}, None) for _, value in cases]
        assert rows_of(spark, server, record(a=schema), texts, {"on.error": "column"}) == expected


@pytest.mark.parametrize(("schema", "values", "reason"), BAD, ids=range(len(BAD)))
def test_what_a_type_cannot_hold_is_a_bad_row_in_every_mode(
    spark: SparkSession, server: SchemaRegistryServer, schema: Any, values: list[str], reason: str
) -> None:
    texts = [f'{{"a": {text}}}' for text in values]
    found = rows_of(spark, server, record(a=schema), texts, {"on.error": "column"})
    assert [value for value, _ in found] == [{"a": None}] * len(values)
    assert [text for text, (_, error) in zip(values, found, strict=True) if not (error or "").startswith(reason)] == []
    corrupt = rows_of(spark, server, record(a=schema), texts, {"columnNameOfCorruptRecord": "bad"})
    assert corrupt == [({"a": None, "bad": text}, None) for text in texts]
    for text in (texts[0], texts[-1]):
        with pytest.raises(Exception, match=r"MALFORMED_(JSON_MESSAGE|RECORD_IN_PARSING)"):
            rows_of(spark, server, record(a=schema), [text], {"mode": "FAILFAST"})


@pytest.mark.parametrize(
    ("schema", "good", "bad", "reason"),
    [
        (TIME, '"2026-01-02T10:15:30Z"', '"10:15:30"', "is not a date-time"),
        (DAY, '"2026-01-02"', '"2026"', "is not a date"),
        (BYTES, '"AQI="', "1234", "is not text"),
        (AMOUNT, "1", '"1"', "is a text"),
        (MILLIS, "1", "9223372036854775807", "is not a number of milliseconds"),
        (INT8, "1", "128", "is beyond the range of int8"),
        (NUMBER, "1", "1e400", "is beyond the range of double"),
    ],
)
def test_the_error_says_where_the_value_is_at_every_depth(
    spark: SparkSession, server: SchemaRegistryServer, schema: Any, good: str, bad: str, reason: str
) -> None:
    nested = record(r=record(a=schema), l=array(schema), m=map_of(schema), d=array(record(m=map_of(array(schema)))))
    places = {
        '{"r": {"a": HERE}}': "r.a",
        '{"l": [null, HERE, HERE]}': "l[]",
        '{"m": {"x": null, "y": HERE}}': "m[]",
        '{"d": [null, {"m": null}, {"m": {"x": [HERE]}}]}': "d[].m[][]",
    }
    options = {"on.error": "column"}
    found = rows_of(spark, server, nested, [text.replace("HERE", bad) for text in places], options)
    assert [error.split(" is ")[0] for _, error in found if error] == list(places.values())
    assert all(reason in (error or "") for _, error in found)
    right = rows_of(spark, server, nested, [text.replace("HERE", good) for text in places], options)
    assert [error for _, error in right] == [None] * len(places)
    assert all("HERE" not in json.dumps(value) and value for value, _ in right)
    alone = rows_of(spark, server, array(schema), [f"[{good}, {bad}]", f"[{good}]"], options)
    assert [error is None for _, error in alone] == [False, True]
    scalar = rows_of(spark, server, schema, [bad, good], options)
    assert [error is None for _, error in scalar] == [False, True]
    assert scalar[0][0] is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, '{"a":1,"b":"x","l":[1,"5"]}'),
        ({}, '{"a":1,"l":[",5"]}'),
        ({}, '{"a":1,"l":[ \n",5"]}'),
        ({}, """{'a':'5'}"""),
        ({}, '{"a" \t:\r\n "5"}'),
        ({}, r'{"\u0061":"5"}'),
        ({}, '{"a":1,"o":{"\u00fc b":"5"}}'),
        ({}, '{"a":"7","a":"5"}'),
        ({"allowUnquotedFieldNames": "true"}, '{a:"5"}'),
        ({"allowComments": "true"}, '{"a"/**/:/*x*/"5"}'),
        ({"allowBackslashEscapingAnyCharacter": "true"}, r'{"\a":"5"}'),
        ({"allowBackslashEscapingAnyCharacter": "true"}, r'{"a":"\5"}'),
    ],
)
def test_a_text_of_digits_is_no_number_however_the_message_is_written(
    spark: SparkSession, server: SchemaRegistryServer, options: dict[str, str], text: str
) -> None:
    """Spark reads such a text for a decimal; only messages that may have one are read again."""
    schema = record(a=AMOUNT, b=TEXT, l=array(AMOUNT), o=record(**{"\u00fc b": AMOUNT}))
    found = rows_of(spark, server, schema, [text], {"on.error": "column", **options})
    assert [str(error).endswith(" is a text, and no number") for _, error in found] == [True]
    others = '{"b": "2026-01-02", "a": 7, "l": [7, 8], "c": "5"}'
    assert rows_of(spark, server, schema, [others], {"on.error": "column", **options})[0][1] is None


def test_the_users_patterns_take_the_place_of_rfc_3339(spark: SparkSession, server: SchemaRegistryServer) -> None:
    schema = record(t=TIME, d=DAY)
    options = {"on.error": "column", "timestampFormat": "dd.MM.yyyy HH:mm", "dateFormat": "yyyyMMdd"}
    texts = [
        '{"t": "02.01.2026 10:15", "d": "20260102"}',
        '{"t": "2026-01-02T10:15:30Z"}',
        '{"t": "10:15"}',
        '{"d": "2026-01-02"}',
        '{"d": 20260102}',
    ]
    found = rows_of(spark, server, schema, texts, options)
    assert found[0] == ({"t": "2026-01-02T10:15:00.000Z", "d": "2026-01-02"}, None)
    assert [error and error.split(" in ")[0] for _, error in found[1:]] == [
        "t is not a timestamp of the option timestampFormat",
        "t is not a timestamp of the option timestampFormat",
        "d is not a date of the option dateFormat",
        "d is not text",
    ]
    zoned = rows_of(spark, server, schema, texts[:1], {**options, "timeZone": "Europe/Berlin"})
    assert zoned[0][0]["t"] == "2026-01-02T09:15:00.000Z"


def test_of_a_key_that_an_object_has_twice_the_last_value_counts(
    spark: SparkSession, server: SchemaRegistryServer
) -> None:
    schema = record(
        m=map_of(INTEGER), n=map_of(map_of(TIME)), l=array(record(m=map_of(INT8))), s=record(k=INTEGER, o=TEXT)
    )
    texts = [
        '{"m": {"k": 1, "j": 5, "k": 2, "k": 3}}',
        '{"m": {"a": 1, "b": 2, "a": null, "b": 3, "c": 4}}',
        '{"n": {"x": {"t": "now"}, "x": {"t": "now", "t": "2026-01-02T10:15:30Z"}}}',
        '{"l": [{"m": {"k": 300, "k": 7}}, null, {"m": {}}]}',
        '{"s": {"k": 1, "o": "x"}, "s": {"k": 2, "k": 3}}',
        '{"m": {"k": 1}, "m": {"j": 2}}',
    ]
    found = rows_of(spark, server, schema, texts, {"on.error": "column"})
    assert [error for _, error in found] == [None] * len(texts)
    assert [next(each for each in value.values() if each is not None) for value, _ in found] == [
        {"j": 5, "k": 3},
        {"a": None, "b": 3, "c": 4},
        {"x": {"t": "2026-01-02T10:15:30.000Z"}},
        [{"m": {"k": 7}}, None, {"m": {}}],
        {"k": 3, "o": None},
        {"j": 2},
    ]
    whole = rows_of(spark, server, map_of(INTEGER), ['{"k": 1, "k": 2}'], {"mode": "FAILFAST"})
    assert whole == [({"k": 2}, None)]


SHOP = record(
    n=INTEGER,
    o=record(a=INT32, l=array(record(p=NUMBER, **{"q'\\": INTEGER}))),
    m=map_of(INTEGER),
    b={"type": "boolean"},
    **{"`x y`": record(d=INTEGER), "a.b['c[0]": record(d=INTEGER), "select": record(d=INTEGER)},
    **{name: record(d=INTEGER) for name in (" ", "\n", " x", "?", '"', "\\", "$", "\x01")},
)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"n": "x"}', "n does not fit the type bigint"),
        ('{"n": null, "m": null, "b": 7}', "b does not fit the type boolean"),
        ('{"n": [1]}', "n does not fit the type bigint"),
        ('{"o": 5}', "o does not fit the type struct"),
        ('{"o": {"a": 2147483648}}', "o.a does not fit the type int"),
        ('{"o": {"a": 1, "l": [{"p": 1}, {}, {"p": "z"}]}}', "o.l[].p does not fit the type double"),
        ('{"o": {"a": 1, "l": [{"p": 1}, 7]}}', "o.l does not fit the type array"),
        ('{"o": {"a": 1, "l": {"p": 1}}}', "o.l does not fit the type array"),
        ('{"m": {"k": "v"}}', "m does not fit the type map"),
        ('{"`x y`": {"d": 1.5}}', "`x y`.d does not fit the type bigint"),
        ("""{"a.b['c[0]": {"d": 1.5}}""", "a.b['c[0].d does not fit the type bigint"),
        ('{"select": {"d": 1.5}}', "select.d does not fit the type bigint"),
        ('{"$": {"d": 1.5}}', "$.d does not fit the type bigint"),
        ("[1]", "it does not fit the type struct"),
        ("7", "it does not fit the type struct"),
    ],
)
def test_the_error_says_which_value_does_not_fit_its_column(
    spark: SparkSession, server: SchemaRegistryServer, text: str, place: str
) -> None:
    good = '{"n": 1, "o": {"a": 1, "l": [{"p": 1}]}, "m": {"k": 1}, "b": true}'
    found = rows_of(spark, server, SHOP, [good, text, good], {"on.error": "column"})
    assert [error for _, error in found] == [None, f"{NO_JSON}: {place}", None]


@pytest.mark.parametrize(
    ("schema", "text", "reason"),
    [
        (array(INTEGER), '[1, "x"]', f"{NO_JSON}: it does not fit the type array"),
        (array(record(n=INTEGER)), '[{"n": 1}, {"n": "x"}]', f"{NO_JSON}: [].n does not fit the type bigint"),
        (array(record(n=INTEGER)), '[{"n": 1}, {"n": null}, {}, null]', None),
        (array(record(n=INTEGER)), '[{"n": NaN}]', f"{NO_JSON}: [].n does not fit the type bigint"),
        (array(record(n=NUMBER)), '[{"n": NaN, "m": {}}] more', None),
        (
            map_of(record(n=INTEGER)),
            '{"a": {"n": 1}, "b": {"n": "x"}}',
            f"{NO_JSON}: [].n does not fit the type bigint",
        ),
        (
            map_of(map_of(record(n=INTEGER))),
            '{"a": {"a": {}, "b": {"n": "x"}}}',
            f"{NO_JSON}: [][].n does not fit the type bigint",
        ),
        (
            map_of(map_of(record(n=INTEGER))),
            '{"a": {"b": {"n": "x"}}, "b": {"b": {"n": 1}}}',
            f"{NO_JSON}: [][].n does not fit the type bigint",
        ),
        (map_of(map_of(record(n=INTEGER))), '{"a": {"b": {"n": 1}, "c": {}}, "b": {"b": {"n": 1}}}', None),
        (array(INTEGER), "null", None),
        (INTEGER, '"x"', f"{NO_JSON}: it does not fit the type bigint"),
        (array(INTEGER), "[1", "is not JSON from byte 2 of 2, where a comma or ] is expected"),
    ],
)
def test_the_error_says_it_of_a_schema_that_is_no_object_too(
    spark: SparkSession, server: SchemaRegistryServer, schema: Any, text: str, reason: str
) -> None:
    assert rows_of(spark, server, schema, [text], {"on.error": "column"})[0][1] == reason


def test_no_column_is_blamed_where_spark_gives_no_parts_of_what_it_read(
    spark: SparkSession, server: SchemaRegistryServer
) -> None:
    spark.conf.set("spark.sql.json.enablePartialResults", "false")
    try:
        found = rows_of(spark, server, SHOP, ['{"n": 1, "b": 7}'], {"on.error": "column"})
    finally:
        spark.conf.unset("spark.sql.json.enablePartialResults")
    assert found[0][1] == NO_JSON


@pytest.mark.parametrize(
    ("text", "byte", "expected"),
    [
        ('{"n": 1', 7, "a comma or }"),
        ('{"n": 1,}', 8, "a name"),
        ("{", 1, "a name or }"),
        ('{"n" 1}', 5, "a colon"),
        ('{"n":}', 5, "a value"),
        ('{"o": {"l": [1, ]}}', 16, "a value"),
        ('{"o": {"l": [', 13, "a value or ]"),
        ('{"o": {"l": [1}}', 14, "a comma or ]"),
        ("  garbage", 2, "a value"),
        ('{"n": 01}', 6, "a value"),
        ('{"n": -}', 6, "a value"),
        ('{"n": tru}', 6, "a value"),
        ('{"s": "x', 6, "a value"),
        ('{"s": "x\ty"}', 6, "a value"),
        (r'{"s": "\q"}', 6, "a value"),
        (r'{"s": "\"{[,:\\", "n": [,]}', 24, "a value or ]"),
        ('{"\u00e4": "\U0001f600" "n": 1}', 14, "a comma or }"),
        ("{'n': 1,,}", 8, "a name"),
        ("{1: 2}", 1, "a name or }"),
        ("{" + '"n": {' * 40 + "1", 241, "a name or }"),
    ],
)
def test_the_error_says_from_which_byte_on_a_text_is_not_json(
    spark: SparkSession, server: SchemaRegistryServer, text: str, byte: int, expected: str
) -> None:
    found = rows_of(spark, server, SHOP, [text], {"on.error": "column"})
    assert found[0][1] == f"is not JSON from byte {byte} of {len(text.encode())}, where {expected} is expected"


def test_the_byte_is_where_pythons_parser_stops_or_the_token_around_it(
    spark: SparkSession, server: SchemaRegistryServer
) -> None:
    random = Random(5)
    whole = '{"n": -1.5e3, "o": {"a": 1, "l": [{"p": 0.25}, null, {}]}, "s": "a, \\" b", "t": [true, [], "x"]}'
    texts: dict[str, int] = {}
    while len(texts) < 300:
        start = random.randrange(len(whole))
        text = whole[:start] + random.choice(["", *'{}[]:,"x1 ']) + whole[start + random.randrange(3) :]
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            if error.msg != "Extra data":  # Spark leaves it alone
                texts[text] = error.pos
    found = rows_of(spark, server, SHOP, [*texts], {"on.error": "column"})
    for (text, stop), (_, error) in zip(texts.items(), found, strict=True):
        assert error is not None
        place = re.match(r"is not JSON from byte (\d+) of", error)
        assert place is not None, (text, error)
        begin = int(place[1])
        between = text[min(begin, stop) : max(begin, stop)]
        assert between == "" or between.isspace() or begin < stop or between.strip() in {",", ":"}, (text, stop, error)
        assert re.fullmatch(r"""["'].*|[^\s"'{}\[\]:,]*\s*|\s*""", text[begin:stop] or "", re.DOTALL), (
            text,
            stop,
            error,
        )


def test_no_byte_is_said_where_options_allow_what_is_not_json(
    spark: SparkSession, server: SchemaRegistryServer
) -> None:
    found = rows_of(spark, server, SHOP, ["{n: 1, }"], {"on.error": "column", "allowUnquotedFieldNames": "true"})
    assert found[0][1] == NO_JSON
