"""The options of a shop, for tests of declaring and parsing them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from connectors.core.errors import OptionError
from connectors.core.options.declaration import (
    option,
    parse_options,
)
from connectors.core.options.kinds import (
    BOOLEAN,
    BYTES,
    DURATION,
    FLOAT,
    INTEGER,
    PATH,
    SECRET,
    STRING,
    Secret,
    choice,
    duration_or,
)


class Mode(StrEnum):
    FAST = "fast"
    SAFE = "safe"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopOptions:
    shop_id: str = option("shopId", STRING, "Which shop.")
    pages: int = option("pages", INTEGER, "How many.", default="3", minimum="1", maximum="10", aliases=("pageCount",))
    page_bytes: int = option("pageBytes", BYTES, "How large.", default="16mb", minimum="1kb")
    ratio: float = option("ratio", FLOAT, "How much.", default="0.5", minimum="0", maximum="1")
    strict: bool = option("strict", BOOLEAN, "Whether to be strict.", default="false")
    wait: float = option("wait", DURATION, "How long.", default="10s", maximum="1h")
    keep: float | None = option("keep", duration_or("auto"), "How long.", default="auto", minimum="10m", maximum="31d")
    mode: Mode = option("mode", choice(Mode), "Which way.", default="safe")
    folder: Path | None = option("folder", PATH, "Where.", default=None)
    token: Secret | None = option("token", SECRET, "Token.", default=None, aliases=("apiToken",))
    pem_key: Secret | None = option("pemKey", SECRET, "Key.", default=None, multiline=True)
    key_file: Path | None = option("keyFile", PATH, "Key.", default=None, instead_of=("privateKey",), sensitive=True)
    derived: str = "not an option"


def parse(raw: dict[str, str], environ: dict[str, str] | None = None) -> ShopOptions:
    return parse_options(ShopOptions, {"shopid": "7"} | raw, environ or {}, "shop")


def refused(raw: dict[str, str], environ: dict[str, str] | None = None) -> OptionError:
    with pytest.raises(OptionError) as caught:
        parse(raw, environ)
    assert str(caught.value).count("\n") == 0
    return caught.value
