"""Processes: Python programs that the pack starts, and the workers that Spark starts."""
