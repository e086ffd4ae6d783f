"""The pages on performance say what the record says, and the record is what the public set can measure."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from tools.performance import (
    ASKED,
    PAGE,
    PICTURES,
    STAGES_PAGE,
    Record,
    joined,
    latency_cells,
    page,
    read_record,
    stages_page,
)
from tools.performance_plots import pictures

ROOT = PAGE.parent.parent
MACHINE = {"processors": "2 cores"}
AGAIN = "run ./dev bench --publish --render"


def unit(benchmark: str, **found: Any) -> dict[str, Any]:
    fixed = {"commit": "0123456789", "date": "2026-11-24", "load": "0.1, 0.1, 0.1", "seconds": 60}
    return {**fixed, "benchmark": benchmark, "found": found}


def ratio(case: str, value: float, *rounds: float) -> dict[str, Any]:
    return {"case": case, "ratio": value, "rounds": list(rounds), "ours": "kafka_py", "theirs": "kafka"}


def side(case: str, name: str, *values: float) -> dict[str, Any]:
    return {"case": case, "side": name, "unit": "ms", "values": list(values)}


def record(*units: dict[str, Any]) -> Record:
    return Record({"machine": MACHINE, "units": {str(number): one for number, one in enumerate(units)}})


def cells(text: str, work: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"| {work} (`")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_committed_pages_and_pictures_are_those_of_the_committed_record() -> None:
    found = read_record()
    assert PAGE.read_text() == page(found), AGAIN
    assert STAGES_PAGE.read_text() == stages_page(found), AGAIN
    drawn = pictures(found)
    assert {name: (PICTURES / name).read_text() for name in drawn} == drawn, AGAIN


def test_what_was_asked_stands_beside_what_was_measured_and_its_ceiling() -> None:
    ratios = [ratio("stream-100", 1.6, 1.5, 1.7), ratio("ceiling-100", 2.0), ratio("stream-200", 1.8)]
    line = cells(page(record(unit("kafka_read", ratios=ratios))), "Kafka stream read, the same sizes")
    assert line[1:] == [
        ">= 0.92 of the ceiling",
        "1.60 / 1.80 / not measured",
        "0.80 / not measured / not measured of 2.00 / not measured / not measured",
    ]


def test_a_line_of_which_nothing_was_measured_says_so() -> None:
    assert cells(page(record()), "Kinesis read, 100 B / 1 KB")[2] == "not measured"
    assert joined([None, None]) == "not measured"


def test_what_is_no_ratio_is_computed_from_the_sides() -> None:
    text = page(
        record(
            unit("kafka_latency", sides=[side("p50", "behind the ceiling", 9, 14, 10)]),
            unit("kafka_partitions", sides=[side("batch-500", "kafka_py", 9, 11), side("batch-500", "kafka", 8)]),
            unit("pubsub_stream", sides=[side("rows", "ours, rows of the sink", 208_000)]),
        )
    )
    assert cells(text, "Kafka produce to sink, p50 / p99")[2] == "not measured; p50 10 ms behind the ceiling"
    assert cells(text, "Kafka batch read of 500 partitions")[2] == "not measured; 10.0 s, 2.0 s more"
    assert cells(text, "Pub/Sub to Spark's noop sink, 1 KB")[2] == "not measured; 208,000 rows/s"


def test_each_ratio_stands_with_the_spread_of_its_rounds_and_each_run_with_its_commit() -> None:
    text = page(record(unit("kinesis_read", ratios=[ratio("wall-100", 11.5, 11.0, 12.5)])))
    assert "| `kinesis_read` | `wall-100` | 11.50 | 11 to 12.50 | 2 |" in text
    assert "| `0` | `0123456789` | 2026-11-24 | 1.0 | 0.1, 0.1, 0.1 |" in text


def test_latencies_under_load_have_milliseconds_with_and_without_a_peer() -> None:
    sides = [side("kafka-10k-p50", "kafka_py", 100), side("kafka-10k-p50", "kafka", 80)]
    sides += [side("kafka-10k-p99", "kafka_py", 300), side("kafka-10k-p99", "kafka", 290)]
    sides += [side("pubsub-50k-p50", "pubsub", 200), side("pubsub-50k-p99", "pubsub", 400)]
    ratios = [ratio("kafka-10k-p50", 0.8), ratio("kafka-10k-p99", 0.97)]
    note = {"case": "pubsub-50k", "note": "the generator itself was late"}
    found = record(unit("latency_under_load", sides=sides, ratios=ratios, notes=[note]))
    assert latency_cells(found) == [
        ["`kafka-10k`", "100 / 300", "80 / 290", "0.80 / 0.97"],
        ["`pubsub-50k`", "200 / 400", "-", "-"],
    ]
    assert "- pubsub-50k: the generator itself was late" in page(found)


def test_tables_of_several_runs_stand_under_their_titles() -> None:
    rows = [{"partitions": 1, "side": "kafka_py", "processor, us a row": 0.123}]
    text = page(record(unit("growth", tables={"By partitions": rows}), unit("growth", tables={"By shards": rows})))
    assert "By partitions:\n\n| partitions | side | processor, us a row |" in text
    assert "| 1 | kafka_py | 0.12 |" in text


def test_the_page_of_stages_adds_them_up() -> None:
    fixed = {"whose": "Spark", "spread": "1 to 2", "measured": "so"}
    rows = [{"row": "1 KB", "stage": stage, "us a row": cost, **fixed} for stage, cost in (("client", 1.5), ("JVM", 2))]
    text = stages_page(record(unit("stages", tables={"Kafka read": rows})))
    assert "Together 3.50 us for 1 KB. Measured by `./dev bench stages --cases kafka-read`." in text


def test_a_picture_follows_light_and_dark_pages_and_is_the_same_each_time() -> None:
    found = record(unit("kafka_read", ratios=[ratio("batch-100", 2.5, 2.4, 2.6), ratio("stream-100", 1.6)]))
    (text,) = pictures(found).values()
    assert text == pictures(found)["performance-ratios.svg"]
    assert "@media (prefers-color-scheme:dark)" in text
    colours = re.findall(r"(?:fill|stroke): (#\w+)", text)
    assert not colours, "each colour has a light and a dark form"


@pytest.fixture
def parts() -> Any:
    sys.path.append(str(ROOT / "bench"))
    from _publish import PARTS  # noqa: PLC0415 - a program of bench/

    return PARTS


def test_each_part_of_the_public_set_is_a_benchmark_with_a_key_of_its_own(parts: Any) -> None:
    assert len({part.key for part in parts}) == len(parts)
    assert {part.benchmark for part in parts if not (ROOT / "bench" / f"{part.benchmark}.py").is_file()} == set()


def test_each_line_of_what_was_asked_is_measured_by_the_public_set(parts: Any) -> None:
    run = {
        part.benchmark: [case for other in parts if other.benchmark == part.benchmark for case in other.cases]
        for part in parts
    }
    for line in ASKED:
        assert line.benchmark in run
        for case in line.cases:
            assert not run[line.benchmark] or case.removesuffix("-cpu") in run[line.benchmark], case
