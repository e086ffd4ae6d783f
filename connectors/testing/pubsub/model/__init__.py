"""The state machine of the Pub/Sub server: topics, subscriptions, queues, ordering."""
