"""What the reference page of the JSON functions says of JSON Schemas."""

from __future__ import annotations

__all__ = ["JSON_RULES"]

JSON_RULES = """\
## `from_json_registry`

The first bytes of each message, its frame, go to a Python worker, which asks the registry once for the schema of the
writer. The JSON stays in the JVM: Spark's own `from_json` decodes it into the columns of the JSON Schema, which are
those of `schema`, else of the latest version of the subject. `schemaRegistry` is the dictionary of
[`from_protobuf`](protobuf.md#the-dictionary-schemaregistry); with `schemaRegistryAddress`, how to authenticate
(`confluent.schema.registry.*`) may stand among the options.

A message is a bad row if its frame is not right, the registry has no such schema, that schema isn't a JSON Schema,
nothing follows the frame, or what follows is not UTF-8. So is one that is not JSON of the columns, or has a value that
its column cannot hold. With `on.error=column` the error says which: "o.l[].p does not fit the type double", or "is not
JSON from byte 7 of 30, where a name is expected". It gives no byte for a text above 64 KB, for wrong digits after
`\\u`, and if one of Spark's options that begin with `allow` is set. It gives no column for a name that an object has
twice. To find the byte takes about 2 ms for each KB of a bad row.

A writer's schema that gives a column another meaning makes bad rows of all its messages. These differ: numbers and
`format: date-time`; plain numbers and Kafka Connect's `Date`, `Time`, `Timestamp`; any two of those three; decimals as
numbers, decimals in base64, and each of another scale; bytes in base64 and any text. A column that is a plain number
takes every number as it is, also the days or milliseconds of Kafka Connect.

Of a name that an object has twice, the last value counts, at every depth, in a `STRUCT` and in a `MAP`. In a `VARIANT`
it makes a bad row, unless `spark.sql.variant.allowDuplicateKeys` is set. `{"a": 1} more` is read as `{"a": 1}`, as
Spark's `from_json` does.

What Spark's `from_json` does not check costs processor time of the JVM. Beside it, in one session, a message of 150 to
250 bytes took (`bench/json_registry.py`, the least of ten runs): plain columns and numbers 1.5 times its time, dates
1.6, base64 1.8, decimals 1.9, a map of ten entries 1.6, and Kafka Connect's decimals and times 2.3.

### Columns

| a JSON Schema | in Spark |
|---|---|
| `integer`; `number` | `BIGINT`; `DOUBLE`. With `connect.type`: `TINYINT`, `SMALLINT`, `INT`, `BIGINT`, `FLOAT`, \
`DOUBLE` |
| `boolean`; `string` | `BOOLEAN`; `STRING` |
| `string` with `format` `date` or `date-time` | `DATE`, `TIMESTAMP`; other formats are `STRING` |
| `string` with `connect.type: bytes` | `BINARY`, from base64 |
| Kafka Connect's `Date`, `Timestamp`, `Decimal` by `title` | `DATE`, `TIMESTAMP`, `DECIMAL`, from numbers or, of a \
decimal, also from base64; 38 digits unless `connect.decimal.precision` says less. `Time` is `INT`, milliseconds |
| `object` with `properties` | `STRUCT`, in the order of `connect.index`, else of the schema. What is no property is \
not read |
| `object` without `properties` | `MAP<STRING, ...>` of `additionalProperties` and `patternProperties` |
| `array` | `ARRAY`; of a tuple the type that its items have in common. A map of Kafka Connect whose keys are no \
texts is an array of `key` and `value` |
| `enum`, `const` without `type` | the type of the values |
| a union of a type and `null`, by `type`, `anyOf` or `oneOf` | that type |
| a union of numbers | the widest of them |
| any other union, `{}`, `true`, and what is always null | `VARIANT`, which has the JSON as it is; a JSON `null` in \
it is a null of VARIANT's |
| `allOf` | all properties together; for a type and a narrower one the narrower one |
| `anyOf`, `oneOf` beside `properties` | the properties of all branches |
| `$ref` | a part of the schema, by a pointer, an anchor or an `$id`, or a reference in the registry. No URL is \
fetched |

Drafts 4 to 2020-12 are read. What stands beside a `$ref` counts if `$schema` names draft 2019-09 or a later one. A
schema for a text, a number or a boolean alone gives a column of that type.

### What is not as in the schema

- Every column can be NULL. `required`, `minimum`, `pattern`, `additionalProperties: false`, `not`, `if` and all else
  that limits values is not checked, as Confluent's deserializer does not unless `json.fail.invalid.schema` is set.
  Properties that only `if`, `then`, `dependentSchemas` or `unevaluatedProperties` describe are not read.
- An integer beyond the range of its type, or written as `5.0` or `1e3`, is a bad row. So is a number beyond the range
  of `FLOAT` or `DOUBLE`. `NaN` and `Infinity` are read, also as texts, unless `allowNonNumericNumbers` is `false`.
- `format: date-time` is that of RFC 3339, `2026-01-02T10:15:30Z`: with an offset of at most 18 hours, or `Z`. `t` and
  `z` may be in lower case. A space instead of `T`, the second 60, and a time without an offset are bad rows. Further
  digits than microseconds are cut off. `format: date` is `2026-01-02` alone. `timestampFormat` and `dateFormat` give
  another pattern instead. Neither the day of the query nor the session's time zone changes a value.
- Dates and times of the years 1 to 9999 are read, as texts and as the numbers of Kafka Connect. Others are bad rows.
- Base64 is that of RFC 4648, with padding and without line breaks.
- A number is rounded to the digits of a `DECIMAL`; with too many before the point, or as a text, it is a bad row.
- What is not text is read into a `STRING` as its JSON.

Refused are `allOf` of types that exclude each other, or of decimals of different scales (`JSON_TYPE_NOT_SUPPORTED`),
decimals of more than 38 digits, values that are checked, such as dates, maps and fractions, more than 30 levels deep,
schemas that hold themselves unless `recursiveFieldMaxDepth` is set
(`RECURSIVE_JSON_SCHEMA`), references that lead nowhere (`JSON_REFERENCE_NOT_FOUND`), and schemas with more than
10,000 columns, 100 levels, 100,000 parts, 10,000 `$id` or an `$id` of more than 4,096 characters
(`CANNOT_PARSE_JSON_SCHEMA`). So are schemas that lead to more than 50,000 values or 2,000,000 steps of merging.

## `to_json_registry`

Spark's own `to_json` writes the JSON, behind a frame with the id of the latest version of the subject when the query
is made. Nothing is registered, and whether the JSON fits the schema is not checked. `to_json` leaves out what is
NULL, unless `ignoreNullFields` is `false`, and writes milliseconds of timestamps, unless `timestampFormat` has more
digits. A schema with dates, timestamps or base64 decimals of Kafka Connect is refused, because `to_json` writes them
in another form."""
