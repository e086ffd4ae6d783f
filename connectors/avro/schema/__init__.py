"""Avro schemas: read from JSON, resolved against each other, and as columns of Spark."""
