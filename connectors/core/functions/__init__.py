"""What `from_protobuf`, `from_avro` and the like share: how each Spark version runs them, and bad rows.

`calls` gives Spark's function for a call, `pandas_columns` and `row_columns` stand in where a Spark has no Arrow
functions, `bad_rows` is what a message that cannot be read becomes, `columns` puts Arrow arrays together.
"""
