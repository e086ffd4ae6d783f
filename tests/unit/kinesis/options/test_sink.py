"""The options of the Kinesis sink: what is refused."""

from __future__ import annotations

import pytest

from connectors.core.errors import OptionError
from connectors.kinesis.options.sink import parse_write_options


def test_sink_refuses_plain_http_to_another_machine_too() -> None:
    with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*endpointUrl.*allowInsecure=true"):
        parse_write_options({"streamName": "a", "endpointUrl": "http://kinesis.example"}, {})
