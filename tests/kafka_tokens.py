"""A token provider, as users write one: unsigned tokens, which the test broker takes."""

from __future__ import annotations

import base64
import json
import time
from typing import Any


class UnsignedTokens:
    """Gives a token for the user of the test broker."""

    def token(self) -> tuple[str, float, str]:
        """The token, when it ends, and whose it is."""
        now = time.time()
        claims = {"sub": "shop", "iat": now - 5, "exp": now + 600}
        return f"{_part({'alg': 'none'})}.{_part(claims)}.", now + 600, "shop"


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
