"""Programs of others that our tests and benchmarks start: where they are found, and their processes."""
