"""Apache Kafka as a source and a sink of Spark, under the name ``kafka_py``.

Read the modules in this order: ``options``, ``client``, ``reader``, ``writer``, then what only they need.
"""
