"""Kafka for tests: librdkafka's mock cluster."""
