"""An S3 server for tests."""
