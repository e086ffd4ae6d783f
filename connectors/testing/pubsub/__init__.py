"""A Pub/Sub server for tests, in memory, with knobs for faults."""

from connectors.core.formats import extra_imports

with extra_imports("testing", "connectors.testing.pubsub"):
    from connectors.testing.pubsub.server import (
        Event,
        EventKind,
        PubSubControl,
        PubSubServer,
        PubSubServerProcess,
        start_server_process,
    )

__all__ = ["Event", "EventKind", "PubSubControl", "PubSubServer", "PubSubServerProcess", "start_server_process"]
