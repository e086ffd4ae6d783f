"""A Kinesis server for tests."""
