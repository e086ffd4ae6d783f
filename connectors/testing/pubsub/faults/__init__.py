"""Faults of the Pub/Sub server, the knobs that set them, and the log of events."""
