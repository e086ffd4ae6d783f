"""What ``connectors doctor`` looks at: the causes of what breaks in the first hour, each with its mend."""

from connectors.doctor.run import diagnose

__all__ = ["diagnose"]
