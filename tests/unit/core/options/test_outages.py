"""How long an outage may last: `retryTimeout`, and the names that other connectors have for it."""

from __future__ import annotations

import pytest

from connectors.core.errors import OptionError
from connectors.core.options.declaration import declared_options
from connectors.kinesis.options.sink import parse_write_options
from connectors.kinesis.options.source import KinesisReadOptions, parse_read_options


def test_a_number_of_retries_is_not_cut_short_by_the_default_of_retry_timeout() -> None:
    options = parse_read_options({"streamName": "s", "region": "eu-west-1", "numRetries": "1000"}, {})
    assert not options.outage_rule.gives_up(failures=1000, lasted_seconds=1e6)
    assert options.outage_rule.gives_up(failures=1001, lasted_seconds=0.0)


def test_two_limits_of_the_same_retries_are_refused() -> None:
    raw = {"streamName": "s", "region": "eu-west-1", "client.numRetries": "3", "RETRYTIMEOUT": "1m"}
    for parse in (parse_read_options, parse_write_options):
        with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*numRetries and retryTimeout.*Give one"):
            parse(raw, {})


def test_the_default_is_ten_minutes() -> None:
    assert parse_read_options({"streamName": "s", "region": "eu-west-1"}, {}).retry_timeout == 600
    assert declared_options(KinesisReadOptions)["retry_timeout"].default == "10m"
