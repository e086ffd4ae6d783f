"""Reading from Kafka: planning on the driver, reading in tasks."""
