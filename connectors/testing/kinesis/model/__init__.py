"""Streams, shards and limits of the Kinesis server."""
