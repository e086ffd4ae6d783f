"""Publishing to Pub/Sub."""
