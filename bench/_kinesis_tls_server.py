"""Our Kinesis server with TLS, in a process of its own, for bench/kinesis_transport.py and bench/kinesis_peer.py.

    _kinesis_tls_server.py CERTIFICATES RECORDS SIZE...     a stream of one shard, ``size-N``, for each size

Prints one line of JSON: the URL with TLS, the endpoint without, and the ARN of a consumer of each stream. Ends with its
standard input.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import boto3

from connectors.testing.kinesis import KinesisServer


def main() -> None:
    """Run."""
    certificates, count, *sizes = sys.argv[1:]
    with KinesisServer(certificates=Path(certificates)) as server:
        keys = {"aws_access_key_id": "AKIATEST", "aws_secret_access_key": "test-secret"}
        client = boto3.client("kinesis", endpoint_url=server.url, region_name="us-east-1", **keys)
        consumers = {}
        for size in sizes:
            stream = f"size-{size}"
            server.create_stream(stream)
            server.fill(stream, int(count), int(size))
            arn = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamARN"]
            made = client.register_stream_consumer(StreamARN=arn, ConsumerName="bench")
            consumers[size] = made["Consumer"]["ConsumerARN"]
        server.set_takeover(0)
        found = {"url": server.tls_url, "endpoint": server.endpoint, "consumers": consumers}
        print(json.dumps(found), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
