"""Fetcher processes: what was received becomes durable segments."""
