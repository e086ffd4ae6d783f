"""Avro messages in the frames of registries, Confluent's and Glue's, with the schemas of these."""
