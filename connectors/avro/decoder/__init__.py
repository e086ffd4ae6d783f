"""Decoders of Avro messages: in columns for large batches, row by row for small ones; both by the same plan."""
