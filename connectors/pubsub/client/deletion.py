"""Deleting a subscription, for those who asked for it: no reader and no fetcher does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from connectors.core.options.declaration import parse_options
from connectors.pubsub.client.client import PubSubClient
from connectors.pubsub.client.errors import RpcCall
from connectors.pubsub.client.messages import wire_message
from connectors.pubsub.options.client import PubSubConnectionOptions, Transport, connection_transport

__all__ = ["delete_subscription"]

_METHOD: Final = "DeleteSubscription"


def delete_subscription(subscription: str, raw: Mapping[str, str]) -> None:
    """Delete a subscription.

    Args:
        subscription: its full path.
        raw: how the service is reached: ``endpoint``, ``credentialsFile``, ``allowInsecure``.

    Raises:
        OptionError: an option is unknown or illegal.
        SourceGoneError: it is not there.
        AccessDeniedError: the role for that is missing.
        ConnectorError: any other failure, after the retries.
    """
    options = parse_options(PubSubConnectionOptions, raw, os.environ, "pubsub")
    with _Deleter(connection_transport(options, os.environ), options) as client:
        client.delete(subscription)


class _Deleter(PubSubClient):
    """A client with the one method that no other part of the connector may have."""

    def __init__(self, transport: Transport, options: PubSubConnectionOptions) -> None:
        super().__init__(transport, options.credentials_file)
        self._unary[_METHOD] = self._channel.unary_unary(f"/google.pubsub.v1.Subscriber/{_METHOD}", None, None)

    def delete(self, subscription: str) -> None:
        """Delete a subscription; see `delete_subscription`."""
        request = wire_message("DeleteSubscriptionRequest")(subscription=subscription)
        self._admin(RpcCall(_METHOD, subscription, self._transport), request.SerializeToString())
