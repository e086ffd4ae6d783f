"""A Pub/Sub server for tests."""
