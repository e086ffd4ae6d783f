"""Decoding responses and encoding acks, in messages per second of CPU time: the fast paths against protobuf.

The responses come from the canned server, over a raw gRPC stub; what that stub alone reads is printed too. A fetcher
decodes blocks of about 4 MB, so that is what is decoded here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial

import grpc
import pyarrow as pa
from _canned_pubsub import DESCRIPTION, CannedPubSub
from _common import Benchmark, interleaved, parser, per_cpu_second
from google.pubsub_v1.types import AcknowledgeRequest, StreamingPullRequest

from connectors.pubsub.client.wire import MAX_ACK_IDS, acknowledge_requests
from connectors.pubsub.source.records import Decoder, FastDecoder, PlainDecoder

SIZES = {"100B": 100, "1KB": 1024}
BLOCK_BYTES = 4 << 20
BLOCKS = 3


class RawStream:
    """A StreamingPull that gives responses as bytes, and acks nothing."""

    def __init__(self, address: str, subscription: str) -> None:
        self._ended = threading.Event()
        self._channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        request = StreamingPullRequest(subscription=subscription, stream_ack_deadline_seconds=60)
        call = self._channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")
        self._responses = call(self._requests(StreamingPullRequest.serialize(request)))

    def _requests(self, first: bytes) -> Iterator[bytes]:
        yield first
        self._ended.wait()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._responses)

    def close(self) -> None:
        """End the stream and its channel."""
        self._ended.set()
        self._responses.cancel()
        self._channel.close()


def recorded(size: int, attributes: int) -> list[bytes]:
    """Some blocks of responses of the canned server."""
    responses: list[bytes] = []
    held = 0
    with CannedPubSub(size=size, attributes=attributes) as server:
        stream = RawStream(server.address, server.subscription)
        for response in stream:
            responses.append(response)
            held += len(response)
            if held >= BLOCKS * BLOCK_BYTES:
                break
        stream.close()
    return responses


def in_blocks(responses: Sequence[bytes]) -> list[list[bytes]]:
    """The responses in blocks of about 4 MB."""
    blocks: list[list[bytes]] = [[]]
    for response in responses:
        if blocks[-1] and sum(map(len, blocks[-1])) + len(response) > BLOCK_BYTES:
            blocks.append([])
        blocks[-1].append(response)
    return blocks


def reading(server: CannedPubSub, seconds: float = 2.0) -> float:
    """Messages per second that a raw stub reads and drops."""
    stream = RawStream(server.address, server.subscription)
    responses = iter(stream)
    next(responses)
    before = server.stats()["sent"]
    begin = time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds:
        next(responses)
    sent = server.stats()["sent"] - before
    stream.close()
    return float(sent / spent)


def decoding(decoder: Decoder, blocks: Sequence[Sequence[bytes]]) -> float:
    """Messages per CPU second."""
    return per_cpu_second(lambda: sum(len(decoder.decode(block)) for block in blocks))


def encoding_by_protobuf(ack_ids: pa.Array) -> float:
    """Ack ids per CPU second, with the classes of google-cloud-pubsub."""
    request = AcknowledgeRequest.pb()

    def encode() -> int:
        for start in range(0, len(ack_ids), MAX_ACK_IDS):
            ids = ack_ids.slice(start, MAX_ACK_IDS).to_pylist()
            request(subscription=CannedPubSub.subscription, ack_ids=ids).SerializeToString()
        return len(ack_ids)

    return per_cpu_second(encode)


def encoding(ack_ids: pa.Array) -> float:
    """Ack ids per CPU second, with our encoder."""

    def encode() -> int:
        for _ in acknowledge_requests(CannedPubSub.subscription, ack_ids):
            pass
        return len(ack_ids)

    return per_cpu_second(encode)


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__ or "").parse_args()
    bench = Benchmark("pubsub_decode")
    bench.settings(rounds=options.rounds, block=f"{BLOCK_BYTES >> 20} MiB of responses", server=DESCRIPTION)
    fast, plain = FastDecoder(), PlainDecoder()
    cases = {
        f"{label}{suffix}": (size, attributes)
        for label, size in SIZES.items()
        for suffix, attributes in (("", 0), ("-attributes", 3))
    }
    for case, (size, attributes) in cases.items():
        if options.cases and case not in options.cases:
            continue
        responses = recorded(size, attributes)
        blocks = in_blocks(responses)
        assert all(fast.decode(block).same_as(plain.decode(block)) for block in blocks)
        ours, theirs = interleaved(
            {
                "fast (ptars to Arrow)": partial(decoding, fast, blocks),
                "plain (protobuf, a loop over the messages)": partial(decoding, plain, blocks),
            },
            options.rounds,
        )
        bench.compare(case, ours, theirs, "messages/CPU s")
        if not attributes:
            with CannedPubSub(size=size) as server:
                (read,) = interleaved({"raw stub, responses dropped": partial(reading, server)}, options.rounds)
            bench.show(case, read, "messages/s")
    if not options.cases or "ack-ids" in options.cases:
        ack_ids = plain.decode(recorded(100, 0)).ack_ids
        ours, theirs = interleaved(
            {
                "our encoder, from an Arrow column": partial(encoding, ack_ids),
                "protobuf, from the same column": partial(encoding_by_protobuf, ack_ids),
            },
            options.rounds,
        )
        bench.compare("ack-ids", ours, theirs, "ids/CPU s")
    bench.finish()


if __name__ == "__main__":
    main()
