"""Google's client for Python beside the sink: the share of ``./dev chaos clients`` that each run can have."""

from __future__ import annotations

from tests.chaos.rigs.pubsub_clients import sink_is_received


def test_google_s_client_receives_each_row_once_and_those_of_a_key_in_order(embedded_pubsub: str) -> None:
    outcome = sink_is_received(embedded_pubsub, "python", 1, 300)
    assert outcome["ok"], outcome["faults"]
