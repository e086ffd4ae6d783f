"""Which of the two copies of PySpark a worker imports: the one of its zip, or, in tests, the one that is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.support.processes import RUN_MARK
from tests.support.quick_python import leave_out_zip

PACKAGE = Path(pyspark.__file__).parent
LIBRARIES = sorted(map(str, PACKAGE.glob("python/lib/*.zip")), reverse=True)


@pytest.mark.parametrize("marked", [True, False])
def test_only_a_worker_of_a_test_imports_spark_as_it_is_installed(tmp_path: Path, marked: bool) -> None:
    leave_out_zip()
    environment = {name: value for name, value in os.environ.items() if name != RUN_MARK or marked}
    environment["PYTHONPATH"] = os.pathsep.join(LIBRARIES)  # as Spark sets it for its workers
    program = "import pyspark, py4j; print(pyspark.__file__, py4j.__file__)"
    done = subprocess.run(
        (sys.executable, "-c", program), env=environment, cwd=tmp_path, check=True, capture_output=True, text=True
    )
    own, gateway = done.stdout.split()
    assert Path(LIBRARIES[0]).name == "pyspark.zip"
    assert Path(own).parent == (PACKAGE if marked else Path(LIBRARIES[0], "pyspark"))
    assert Path(gateway).parent == Path(LIBRARIES[1], "py4j")
