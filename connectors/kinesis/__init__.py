"""Amazon Kinesis Data Streams as a source and a sink of Spark; only ``client`` calls the service."""

from typing import Final

FORMAT: Final = "kinesis"
