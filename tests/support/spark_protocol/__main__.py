"""Run one query as Spark does: ``python -m tests.support.spark_protocol SPEC``."""

from tests.support.spark_protocol.program import main

main()
