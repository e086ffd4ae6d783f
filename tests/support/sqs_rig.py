"""Queues of SQS on moto's server, for the example that reads them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import boto3

EXAMPLES = Path(__file__).parents[2] / "examples"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
VISIBILITY_SECONDS = 3


@contextmanager
def moto_server() -> Iterator[str]:
    """URL of moto's server, which takes one request after the other."""
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 - takes a second that others need not wait
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import make_server  # noqa: PLC0415

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it tells of every call
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
    serving = Thread(target=server.serve_forever)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    serving.join()
    server.server_close()


class TestQueue:
    """A queue of one test, and what was sent to it: texts that number the messages, and their ids."""

    __test__ = False

    def __init__(self, endpoint: str, name: str, groups: int = 0) -> None:
        place = {"region_name": KEYS["AWS_DEFAULT_REGION"], "endpoint_url": endpoint}
        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        self._client: Any = boto3.Session().client("sqs", **place, **keys)
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if groups else {}
        self.url: str = self._client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        self._endpoint, self._groups = endpoint, groups
        self.ids: list[str] = []

    def options(self, folder: Path, **changes: str) -> dict[str, str]:
        """The options of a query; it polls, because a call that waits would let moto serve nobody else."""
        return {
            "queueUrl": self.url,
            "endpointUrl": self._endpoint,
            "region": KEYS["AWS_DEFAULT_REGION"],
            "visibilityTimeout": f"{VISIBILITY_SECONDS}s",
            "waitTime": "0s",
            "spoolLocation": str(folder / "spool"),
            "maxFetchPeriod": "30ms",
            **changes,
        }

    def send(self, count: int) -> None:
        """Send messages, of a FIFO queue to its groups in turn."""
        first = len(self.ids)
        for start in range(first, first + count, 10):
            numbers = range(start, min(start + 10, first + count))
            entries = [{"Id": str(number), "MessageBody": str(number), **self._group(number)} for number in numbers]
            sent = self._client.send_message_batch(QueueUrl=self.url, Entries=entries)["Successful"]
            self.ids += [one["MessageId"] for one in sorted(sent, key=lambda one: int(one["Id"]))]

    def _group(self, number: int) -> Mapping[str, str]:
        return {"MessageGroupId": f"group-{number % self._groups}"} if self._groups else {}

    def left(self) -> int:
        """How many messages are not deleted."""
        names: Sequence[Any] = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self._client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)
