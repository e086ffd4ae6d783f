"""Descriptors and the plans that both codecs follow."""
