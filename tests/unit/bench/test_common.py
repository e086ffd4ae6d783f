"""What a benchmark prints and records of its cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from _common import RECORD, Benchmark, Side


def test_a_record_has_the_ratio_of_the_medians_and_that_of_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    monkeypatch.setenv(RECORD, str(path))
    benchmark = Benchmark("one")
    benchmark.compare("rate", Side("ours", [10, 30, 20]), Side("theirs", [10, 10, 10]), "rows/s")
    benchmark.compare("wait", Side("ours", [10, 10]), Side("theirs", [5, 15]), "ms", less_is_better=True)
    benchmark.finish()
    rate, wait = json.loads(path.read_text())["ratios"]
    assert (rate["ratio"], rate["rounds"]) == (2, [1, 3, 2])
    assert (wait["ratio"], wait["rounds"]) == (1, [0.5, 1.5])
    assert capsys.readouterr().out.splitlines()[-2:] == ["ratio one rate: 2.00", "ratio one wait: 1.00"]
