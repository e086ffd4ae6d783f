"""Faults of the Kinesis server, the knobs that set them, and the log of calls."""
