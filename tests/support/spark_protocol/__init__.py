"""A driver that calls a reader as Spark does, without Spark's JVM."""
