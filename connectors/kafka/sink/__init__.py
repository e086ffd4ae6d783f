"""Writing to Kafka, at least once or exactly once."""
