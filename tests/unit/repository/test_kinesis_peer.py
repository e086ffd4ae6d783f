"""The peer of ``./dev bench kinesis_peer`` and ``./dev chaos peers`` is built once, or what is missing is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.kinesis_peer import COMMIT, OTHER_SDK, SOURCE_VARIABLE, build_peer

GIT = """#!/bin/sh
[ "$1" != clone ] || {
    [ -e "$4" ] || { echo "fatal: repository '$4' does not exist" >&2; exit 128; }
    mkdir -p "$(dirname "$5/$SINK")"
    printf '      .setRegion(region)\\n      .setRecordTtl(recordTTL)\\n' >"$5/$SINK"
}
[ "$1" = clone ] || echo "$@" >>"$LOG"
"""
MAVEN = """#!/bin/sh
echo "$@" >>"$LOG"
jar=${4%/*}/target/spark-streaming-sql-kinesis-connector.jar
case "$*" in
    *sdkv2.version* | $COMPLETE*) mkdir -p "${jar%/*}" && cp "${4%/*}/$SINK" "$jar" ;;
    *) echo "[ERROR] Could not find artifact kinesis" && exit 1 ;;
esac
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs in the place of git and Maven, whose registry lacks what the pom wants; what they were called with."""
    for name, text in (("git", GIT), ("mvn", MAVEN)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("COMPLETE", "nothing")
    monkeypatch.setenv("SINK", "src/main/scala/org/apache/spark/sql/connector/kinesis/CachedKinesisProducer.scala")
    monkeypatch.setenv(SOURCE_VARIABLE, str(tmp_path))
    return tmp_path / "log"


def test_it_is_built_from_the_commit_with_another_sdk_where_that_of_its_pom_is_missing(
    tmp_path: Path, log: Path
) -> None:
    peer = build_peer(tmp_path / "jars")
    assert (peer.reason, peer.sdk, Path(peer.jar).is_file()) == ("", OTHER_SDK, True)
    checkout, first, second = log.read_text().splitlines()
    assert checkout.endswith(f"checkout --quiet {COMMIT}")
    assert "sdkv2.version" not in first
    assert f"-Daws.sdkv2.version={OTHER_SDK}" in second


def test_it_is_built_as_its_pom_says_where_that_can_be_had(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPLETE", "-B")
    assert build_peer(tmp_path / "jars").sdk == "as in its pom"
    assert len(log.read_text().splitlines()) == 2


def test_its_sink_writes_to_the_endpoint_of_the_options(tmp_path: Path, log: Path) -> None:
    lines = Path(build_peer(tmp_path / "jars").jar).read_text().splitlines()
    assert log.exists()
    assert lines[:2] == ["      .setRegion(region)", "      .setRecordTtl(recordTTL)"]
    assert "kinesis.endpointurl" in lines[3]
    assert lines[5].strip() == ".setKinesisEndpoint(endpoint.getHost).setKinesisPort(endpoint.getPort)"


def test_it_is_built_once(tmp_path: Path, log: Path) -> None:
    first = build_peer(tmp_path / "jars")
    log.unlink()
    assert build_peer(tmp_path / "jars") == first
    assert not log.exists()


def test_a_source_that_cannot_be_had_is_the_reason(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOURCE_VARIABLE, str(tmp_path / "nothing"))
    peer = build_peer(tmp_path / "jars")
    assert not peer.jar
    assert peer.reason == (
        f"its source cannot be had ({SOURCE_VARIABLE} names another place): "
        f"fatal: repository '{tmp_path / 'nothing'}' does not exist"
    )
    assert not log.exists()


def test_what_maven_says_is_the_reason(tmp_path: Path, log: Path) -> None:
    (tmp_path / "bin" / "mvn").write_text('#!/bin/sh\necho "[ERROR] no registry"\nexit 1\n')
    peer = build_peer(tmp_path / "jars")
    assert peer.reason.startswith(
        "Maven cannot build it with the SDK as in its pom: [ERROR] no registry; with the SDK "
    )
    assert log.read_text().count("checkout") == 1


def test_missing_programs_are_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install the packages git and maven" in build_peer(tmp_path / "jars").reason
