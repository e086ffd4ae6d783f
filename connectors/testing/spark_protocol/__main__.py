"""Run one query as Spark does: ``python -m connectors.testing.spark_protocol SPEC``."""

from connectors.testing.spark_protocol.program import main

main()
