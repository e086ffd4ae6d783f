"""One rig for each codec: every behaviour is the same in all of them."""

from __future__ import annotations

import pytest

from tests.support.protobuf_rig import RIGS, Rig


@pytest.fixture(params=RIGS)
def rig(request: pytest.FixtureRequest) -> Rig:
    return RIGS[request.param]()
