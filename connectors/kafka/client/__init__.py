"""Calls to Kafka: the only package of the connector that imports confluent-kafka."""
