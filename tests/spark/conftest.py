"""The servers that the Spark tests share with the integration tests."""

from tests.integration.conftest import pubsub_emulator

__all__ = ["pubsub_emulator"]
