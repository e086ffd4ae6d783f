"""awslabs' Kinesis connector for Spark, built by Maven from the source of one commit.

    peer = build_peer()
    if peer.reason:
        ...                                   # one sentence: why it cannot be had
    session.config("spark.jars", peer.jar).config("spark.driver.extraJavaOptions", JAVA_OPTIONS)

The source comes by git from its public address, or from what the variable `SOURCE_VARIABLE` names: another address, or
the folder of a clone. Where Maven's registry lacks the AWS SDK that its pom wants, it is built with `OTHER_SDK`. Its
sink gives the KPL no endpoint, so that it writes to the service alone: one statement is added to the source
(`_SINK_STATEMENT`), by which it writes to that of the source's option, with any certificate and without metrics. The
reader is as it is. The jar is kept beside those of `tests.servers.maven`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["COMMIT", "FORMAT", "JAVA_OPTIONS", "SPARK", "Peer", "build_peer", "peer_options"]

COMMIT = "0f4c005fb6f14132073e8e9fcbf73a6bd8e0bad3"
FORMAT = "aws-kinesis"
SPARK = "4.1"
"""Its pom compiles against 4.1.0, and uses classes that 4.0 has in another package."""
JAVA_OPTIONS = "-Daws.cborEnabled=false -Daws.disableEc2Metadata=true"
"""The server of `connectors.testing` speaks JSON."""

SOURCE_VARIABLE = "KINESIS_PEER_SOURCE"
ADDRESS = "https://github.com/awslabs/spark-sql-kinesis-connector"
OTHER_SDK = "2.57.8"

_OF_POM = "as in its pom"
_SINK = "src/main/scala/org/apache/spark/sql/connector/kinesis/CachedKinesisProducer.scala"
_SINK_LINE = "      .setRecordTtl(recordTTL)\n"
_SINK_STATEMENT = """
    val endpoint = new java.net.URI(producerConfiguration("kinesis.endpointurl"))
    kinesisProducerConfiguration
      .setKinesisEndpoint(endpoint.getHost).setKinesisPort(endpoint.getPort)
      .setStsEndpoint(endpoint.getHost).setStsPort(endpoint.getPort)
      .setCloudwatchEndpoint(endpoint.getHost).setCloudwatchPort(endpoint.getPort)
      .setVerifyCertificate(false).setMetricsLevel("none")
"""
_SECONDS = 900
_REASON_SHOWN = 400


@dataclass(frozen=True)
class Peer:
    """The result of `build_peer`: either ``jar`` is set, or ``reason`` says why not.

    Attributes:
        jar: its path, with all that it needs but Spark.
        sdk: the version of the AWS SDK in it.
        reason: why there is none.
    """

    jar: str = ""
    sdk: str = ""
    reason: str = ""


def build_peer(folder: Path | None = None) -> Peer:
    """Return the jar, built now or at an earlier call; it is kept in the folder, by default in the user's cache."""
    folder = folder or Path("~/.cache/pyspark-stream-connectors").expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "kinesis-peer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for sdk in (_OF_POM, OTHER_SDK):
            if (jar := _kept(folder, sdk)).is_file():
                return Peer(str(jar), sdk)
        return _build(folder)


def peer_options(stream: str, url: str) -> dict[str, str]:
    """Return what its source and sink need to reach a stream of the test server."""
    return {
        "kinesis.region": "us-east-1",
        "kinesis.streamName": stream,
        "kinesis.endpointUrl": url,
        "kinesis.awsAccessKeyId": "AKIATEST",
        "kinesis.awsSecretKey": "test-secret",
        "kinesis.startingPosition": "TRIM_HORIZON",
    }


def _kept(folder: Path, sdk: str) -> Path:
    altered = hashlib.blake2b(_SINK_STATEMENT.encode(), digest_size=4).hexdigest()
    return folder / f"kinesis-peer-{COMMIT[:7]}-{altered}-sdk-{sdk.replace(' ', '-')}.jar"


def _build(folder: Path) -> Peer:
    """Get the source, and let Maven package it."""
    git, maven = shutil.which("git"), shutil.which("mvn")
    if git is None or maven is None:
        return Peer(reason="git and Maven are needed on the PATH: install the packages git and maven")
    source = os.environ.get(SOURCE_VARIABLE, ADDRESS)
    with tempfile.TemporaryDirectory() as made:
        tree = f"{made}/source"
        for command in (
            [git, "clone", "--quiet", "--no-checkout", source, tree],
            [git, "-C", tree, "-c", "advice.detachedHead=false", "checkout", "--quiet", COMMIT],
        ):
            if reason := _run(command):
                return Peer(reason=f"its source cannot be had ({SOURCE_VARIABLE} names another place): {reason}")
        sink = Path(tree, _SINK)
        assert sink.read_text().count(_SINK_LINE) == 1, "this commit makes its producer in another way"
        sink.write_text(sink.read_text().replace(_SINK_LINE, _SINK_LINE + _SINK_STATEMENT))
        reasons = []
        for sdk in (_OF_POM, OTHER_SDK):
            version = [] if sdk == _OF_POM else [f"-Daws.sdkv2.version={sdk}"]
            reason = _run([maven, "-B", "-q", "-f", f"{tree}/pom.xml", "-Dmaven.test.skip=true", *version, "package"])
            if not reason:
                [jar] = Path(tree, "target").glob("spark-streaming-sql-kinesis-connector*.jar")
                new = _kept(folder, sdk).with_suffix(".new")
                shutil.copyfile(jar, new)
                return Peer(str(new.replace(_kept(folder, sdk))), sdk)
            reasons.append(f"with the SDK {sdk}: {reason}")
    return Peer(reason=f"Maven cannot build it {'; '.join(reasons)}")


def _run(command: Sequence[str]) -> str:
    """Run a program; return why it failed, in a line, or nothing."""
    environment = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return f"{Path(command[0]).name} did not end in {_SECONDS} s"
    if not done.returncode:
        return ""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if re.search("ERROR|fatal|error", line)]
    return (lines or [f"{Path(command[0]).name} ended with {done.returncode}"])[0][:_REASON_SHOWN]
