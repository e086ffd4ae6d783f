"""Where credentials may go by plain http: the one rule of all clients."""

from __future__ import annotations

import pytest

from connectors.core.errors import OptionError
from connectors.core.options.transport import is_plaintext, refuse_plaintext


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("http://registry:8081", True),
        ("HTTP://10.0.0.1/x", True),
        ("http://localhost.example:80", True),
        ("http://user@localhost@example:80", True),
        ("http://0.0.0.0:80", True),
        ("http://127.0.0.1:80", False),
        ("http://[::1]:80", False),
        ("http://a.localhost", False),
        ("https://registry", False),
        ("", False),
    ],
)
def test_plain_http_is_for_this_machine_alone(url: str, plain: bool) -> None:
    assert is_plaintext(url) is plain
    refuse_plaintext(url, "The option endpoint", "kinesis", "Use https://.", allowed=True)
    if plain:
        with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*which is not this machine \(kinesis\)\. Use https://"):
            refuse_plaintext(url, "The option endpoint", "kinesis", "Use https://.")
