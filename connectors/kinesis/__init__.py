"""Amazon Kinesis Data Streams as a source and a sink of Spark.

Spark builds the classes of the module ``datasource``. On the driver ``source.micro_batch`` and ``source.batch`` plan;
in tasks ``source`` reads and ``sink`` writes. Only ``client`` calls the service.
"""

from typing import Final

FORMAT: Final = "kinesis"
"""The name of the format."""
