"""Apache Kafka as a source and a sink of Spark, under the name ``kafka_py``.

On the driver ``source.micro_batch`` and ``source.batch`` plan; in tasks ``source.reader`` reads and ``sink`` writes.
"""

from typing import Final

FORMAT: Final = "kafka_py"
"""The name of the format."""
