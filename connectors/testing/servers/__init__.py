"""Programs of others that tests start: where they are found, and their processes."""
