from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.waiting import wait_for


def test_a_process_notices_that_its_parent_has_ended(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    child = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from connectors.core.processes.parent import ParentWatch\n"
        "watch = ParentWatch()\n"
        "before = watch.is_gone()\n"
        "print('ready', flush=True)\n"
        "end = time.monotonic() + 60\n"
        "while not watch.is_gone() and time.monotonic() < end: time.sleep(0.01)\n"
        "Path(sys.argv[1]).with_suffix('.part').write_text(f'{before} {watch.is_gone()}')\n"
        "Path(sys.argv[1]).with_suffix('.part').rename(sys.argv[1])\n"
    )
    parent = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], stdout=subprocess.PIPE, text=True)\n"
        "child.stdout.readline()\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", parent, child, str(seen)], check=True, timeout=60)
    wait_for(seen.exists)
    assert seen.read_text() == "False True"
