"""Confluent's wire format and schema registries."""
