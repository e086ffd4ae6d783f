"""Apache Kafka as a source and a sink of Spark, under the name ``kafka_py``.

Spark builds the classes of the module ``datasource``. On the driver ``source.micro_batch`` and ``source.batch`` plan;
in tasks ``source`` reads and ``sink`` writes. Only ``client`` calls the service.
"""

from typing import Final

FORMAT: Final = "kafka_py"
"""The name of the format."""
