"""The operations of the Kinesis API, on the state of the server."""
