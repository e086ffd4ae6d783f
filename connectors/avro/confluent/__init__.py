"""Avro messages in Confluent's frames, with the schemas of a registry."""
