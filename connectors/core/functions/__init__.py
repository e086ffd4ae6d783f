"""What the functions of columns share, such as `from_protobuf` and `from_avro`: how each Spark runs them, and bad rows.

`calls` gives Spark's function for a call, `pandas_columns` and `row_columns` stand in where a Spark has no Arrow
functions, `bad_rows` is what a message that cannot be read becomes, `columns` puts Arrow arrays together.
"""
