"""Reading from Pub/Sub: the stream over a spool, and its fetchers."""
