"""``./dev chaos alerts``: the alerts of docker/prometheus in a real Prometheus, with windows a sixtieth as long.

Each query has a driver of its own, a process that serves the metrics of the product: one is idle, one hangs, one is
stopped, one fails, one is killed, one is killed every few seconds while it is far behind. Prometheus scrapes them, and
in the end each has the alerts that it should have, and still has them when as much time again has passed. It takes
three minutes, needs `prometheus` (Debian's package of that name) and prints a line for each query.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from tests.chaos.rigs.alert_driver import LIVES
from tests.chaos.support.record import ROOT
from tests.servers.java import free_port, free_ports

RULES = ROOT / "docker" / "prometheus" / "alerts.yaml"
EXPECTED: dict[str, set[str]] = {
    "idle": set(),
    "stopped": set(),
    "stuck": {"StreamStuck"},
    "failed": {"StreamGone"},
    "killed": {"StreamGone"},
    "behind": {"StreamBehind", "StreamRestarts"},
    "slow": {"StreamSlowBatches"},
    "spool": {"StreamBehind", "SpoolOldestUnread", "SpoolGrows", "ManyDuplicates"},
}
FACTOR = 60
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_IN_SECONDS = re.compile(r"(_seconds\S*.*?> )(\d+)")
_LIFE_SECONDS = 5.0
"""Of the driver that is killed again and again: five starts within the half minute that stands for half an hour."""
_DOWN_SECONDS = 1.5
_ROUND_SECONDS = 75.0
_WAIT_SECONDS = 30.0


def shortened(rules: dict[str, Any]) -> dict[str, Any]:
    """Return the rules with all windows, waits and thresholds in seconds divided by `FACTOR`."""

    def duration(match: re.Match[str]) -> str:
        return f"{max(1, int(match[1]) * _SECONDS[match[2]] // FACTOR)}s"

    for group in rules["groups"]:
        for rule in group["rules"]:
            text = re.sub(r"\b(\d+)([smhd])\b", duration, rule["expr"])
            is_count = "changes(" in text
            rule["expr"] = text if is_count else _IN_SECONDS.sub(lambda at: f"{at[1]}{int(at[2]) // FACTOR}", text)
            rule["for"] = re.sub(r"\b(\d+)([smhd])\b", duration, rule["for"])
    return rules


class Drivers:
    """The processes of the queries, each with a port."""

    def __init__(self, stack: ExitStack) -> None:
        self.ports = dict(zip(LIVES, free_ports(len(LIVES)), strict=True))
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        stack.callback(lambda: [self.kill(life) for life in list(self._running)])

    def start(self, life: str) -> None:
        """Start the driver of a query."""
        command = [sys.executable, "-m", "tests.chaos.rigs.alert_driver", str(self.ports[life]), life]
        self._running[life] = subprocess.Popen(command, cwd=ROOT)

    def kill(self, life: str) -> None:
        """Kill it, as the kernel does that has no memory left."""
        process = self._running.pop(life)
        process.kill()
        process.wait()


class Prometheus:
    """A Prometheus with the shortened rules."""

    def __init__(self, folder: Path, ports: dict[str, int], stack: ExitStack) -> None:
        self._url = f"http://127.0.0.1:{free_port()}"
        (folder / "rules.yaml").write_text(yaml.safe_dump(shortened(yaml.safe_load(RULES.read_text()))))
        targets = [f"127.0.0.1:{port}" for port in ports.values()]
        settings = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "400ms", "evaluation_interval": "500ms"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "streams", "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
        command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self._url.removeprefix('http://')}",
            "--log.level=warn",
        ]
        self._process = subprocess.Popen(command)
        stack.callback(self._end)

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait()

    def firing(self) -> dict[str, set[str]]:
        """Return the alerts that fire, by query."""
        with urllib.request.urlopen(f"{self._url}/api/v1/alerts", timeout=10) as answer:
            alerts = json.load(answer)["data"]["alerts"]
        found: dict[str, set[str]] = {life: set() for life in LIVES}
        for alert in alerts:
            if alert["state"] == "firing":
                found[alert["labels"]["query"]].add(alert["labels"]["alertname"])
        return found


def live(drivers: Drivers, seconds: float) -> None:
    """Let time pass, in which one driver is killed and started again and again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(_LIFE_SECONDS - _DOWN_SECONDS)
        drivers.kill("behind")
        time.sleep(_DOWN_SECONDS)
        drivers.start("behind")


def main() -> int:
    """Return 1 if an alert did not fire, did not stay, or fired without need."""
    argparse.ArgumentParser(prog="./dev chaos alerts", description=__doc__).parse_args()
    if shutil.which("prometheus") is None:
        sys.exit("prometheus is not installed: Debian's package prometheus has it")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        drivers = Drivers(stack)
        prometheus = Prometheus(folder, drivers.ports, stack)
        for life in LIVES:
            drivers.start(life)
        live(drivers, _WAIT_SECONDS / 2)
        drivers.kill("killed")
        rounds = []
        for _ in range(2):
            live(drivers, _ROUND_SECONDS)
            rounds.append(prometheus.firing())
    wrong = 0
    for life, expected in EXPECTED.items():
        is_right = all(found[life] == expected for found in rounds)
        wrong += not is_right
        shown = [", ".join(sorted(found[life])) or "none" for found in rounds]
        print(f"{'ok   ' if is_right else 'WRONG'} {life:8} {shown[0]}" + ("" if is_right else f"; later {shown[1]}"))
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
