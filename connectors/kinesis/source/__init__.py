"""Reading from Kinesis by polling: planning on the driver, reading in tasks."""
