"""An S3 server for tests, in memory."""

from connectors.testing.object_store.server import ObjectStoreServer

__all__ = ["ObjectStoreServer"]
