"""Encoders of Avro messages: each field of all rows at once, as pieces that Arrow joins to messages."""
