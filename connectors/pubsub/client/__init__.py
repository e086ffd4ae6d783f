"""Calls to Pub/Sub: the only package of the connector that imports Google's SDK."""
