"""One rig for each engine: every behaviour is the same in both."""

from __future__ import annotations

import pytest

from tests.protobuf_rig import ENGINES, Rig


@pytest.fixture(params=ENGINES, ids=["upb", "ptars"])
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(request.param)
