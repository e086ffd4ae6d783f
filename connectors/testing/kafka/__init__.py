"""Kafka for tests: librdkafka's mock cluster and a real broker."""
