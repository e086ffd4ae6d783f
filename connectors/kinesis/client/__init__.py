"""Calls to Kinesis: the only package of the connector that imports botocore and h2."""
