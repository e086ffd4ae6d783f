"""Sessions of botocore: the only package of the core that imports an SDK."""
