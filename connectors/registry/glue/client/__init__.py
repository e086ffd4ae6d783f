"""Calls to Glue: the only package of the registries that imports botocore."""
