"""Spark's own functions, asked where they can be had: the golden corpus again, live.

The newest pair that Maven Central has is Spark 3.4.1 (``python -m tests.golden.protobuf_record --fetch FOLDER`` gets
it); PROTOBUF_JVM names that folder, or a folder with another venv and jar.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connectors.protobuf.worker import Engine
from tests.golden.protobuf_cases import CASES
from tests.golden.protobuf_record import ask_jvm, differences, ours
from tests.support.protobuf_rig import Rig


@pytest.mark.may_skip_in_ci("no spark-protobuf jar for Spark 4 is on Maven Central, and Spark 3.4.1 takes 300 MB")
@pytest.mark.xdist_group("spark")
def test_spark_s_own_functions_give_the_same_answers() -> None:
    folder = Path(os.environ.get("PROTOBUF_JVM", "none"))
    jars = sorted(folder.glob("spark-protobuf_*.jar"))
    if not jars:
        pytest.skip("PROTOBUF_JVM names no folder with a spark-protobuf jar and a venv that pairs with it")
    _, answers = ask_jvm(str(folder / "venv" / "bin" / "python"), str(jars[-1]))
    asked = [case for case in CASES if case.name in answers]
    found = {case.name: differences(ours(case, Rig(Engine.AUTO)), answers[case.name]) for case in asked}
    assert [name for name, each in found.items() if each] == [case.name for case in asked if case.differs]
