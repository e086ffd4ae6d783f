"""Writing to Kinesis."""
