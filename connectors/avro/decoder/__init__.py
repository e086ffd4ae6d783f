"""Decodes Avro messages into columns, by a plan."""
