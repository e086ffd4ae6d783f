"""What ``connectors doctor`` looks at: the causes of what breaks in the first hour, each with its fix."""

from connectors.doctor.run import diagnose

__all__ = ["diagnose"]
