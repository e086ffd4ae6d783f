"""Prepare a Spark session for the formats: hide secrets in its plans, and check the Python of its workers."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from pyspark.errors import PySparkException

from connectors.core.errors import ConnectorError, declared_action
from connectors.core.formats import CONNECTORS, OLDEST_SPARK, not_installed
from connectors.core.options.declaration import Option, secret_options
from connectors.core.processes.interpreter import probe_command
from connectors.core.processes.spark import run_tasks_on, tasks_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["prepare_session", "python_fault", "secrets_pattern"]

_log = logging.getLogger("connectors")
_REDACTED: Final = "spark.sql.redaction.options.regex"
# The present folder comes last: a module there is found, as by Spark's workers, but nothing of it runs.
_PROBE: Final = (
    "import sys; from importlib.util import find_spec; sys.path.append(''); "
    "print(*sys.version_info[:2], *[name for name in ('connectors', 'pyarrow') if find_spec(name) is None])"
)
_PROBE_SECONDS: Final = 60
_prepared: Final[WeakSet[SparkSession]] = WeakSet()


def prepare_session(spark: SparkSession) -> bool:
    """Hide secret options in plans, choose or check the workers' Python, and warn of what endangers writes.

    Returns:
        Whether Spark hides secret options in this session.

    Raises:
        ConnectorError: with the code ``SPARK_TOO_OLD``.
    """
    major = int(spark.version.partition(".")[0])
    if major < OLDEST_SPARK:
        raise ConnectorError(
            "SPARK_TOO_OLD", f"Spark {spark.version} is too old: this package needs {OLDEST_SPARK}.0", "register"
        )
    hidden = _hide_secrets(spark)
    _check_python(spark)
    if (spark.conf.get("spark.speculation", None) or "false").lower() == "true":
        # Neither a sink's tasks nor its options say so.
        _log.warning(
            "[KAFKA_SPECULATION] spark.speculation is on. With deliveryGuarantee=exactly_once, attempts of one "
            "kafka_py task fence each other: rows are right, but the attempts can take turns for a long time. %s",
            declared_action("KAFKA_SPECULATION"),
        )
    return hidden


def secrets_pattern() -> str:
    """Return the pattern, of Java, that matches the names of all secret options and nothing else."""
    return f"(?i:^(?:{'|'.join(re.escape(name) for name in sorted(_secret_names()))})$)"


def _secret_names() -> dict[str, Option]:
    installed = [connector for connector in CONNECTORS if not not_installed(connector.needs)]
    return secret_options(*(cls for connector in installed for cls in connector.option_classes().values()))


def _hide_secrets(spark: SparkSession) -> bool:
    """Have Spark hide secret options; False where a session does not let that be set, as in a pipeline's definitions.

    Spark Connect does not return a setting whose value matches ``spark.redaction.regex``, as ours does.
    """
    try:
        pattern = spark.conf.get(_REDACTED) or ""
        if not _matches_all(pattern):
            ours = secrets_pattern()
            # First, because flags in what is set may hold for all that follows.
            spark.conf.set(_REDACTED, f"{ours}|{pattern}" if pattern else ours)
        _prepared.add(spark)
    except PySparkException:
        return spark in _prepared
    return True


def _matches_all(pattern: str) -> bool:
    """Return whether a pattern matches the name of each secret option in any case, as far as Python understands it."""
    try:
        return bool(pattern) and all(
            re.search(pattern, name) and re.search(pattern, name.upper()) for name in _secret_names()
        )
    except re.error:
        return secrets_pattern() in pattern


def _check_python(spark: SparkSession) -> None:
    """Have tasks run on this program's Python where nothing else is set, or warn that they run on one that cannot work.

    Spark reads PYSPARK_PYTHON when a context is created, and ``pythonExec`` for each function and each data source.
    """
    try:
        context = spark.sparkContext
    except PySparkException:  # Spark Connect: the workers are those of the server
        return
    name = tasks_python(context)
    path = shutil.which(name)
    if not sys.executable or (path is not None and _is_this_python(path)):
        return
    is_local = (context.master or "").startswith("local")
    is_set = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if is_local and not is_set:
        run_tasks_on(context, sys.executable)
        _log.info(
            "PYSPARK_PYTHON is not set: tasks run on %s, the Python of this program, instead of %s.",
            sys.executable,
            name,
        )
    elif fault := python_fault(path, is_local=is_local):
        _log.warning(
            "[SPARK_WORKER_PYTHON] Tasks run on %s, which %s; this program runs on %s (Python %d.%d). Add these "
            'lines before you create the session:\n    import os, sys\n    os.environ["PYSPARK_PYTHON"] = %s',
            path or name,
            fault,
            sys.executable,
            *sys.version_info[:2],
            "sys.executable" if is_local else '"/path/of/python"  # one that every executor has, with this pack',
        )


def _is_this_python(path: str) -> bool:
    there, here = Path(path), Path(sys.executable)
    # Not the files alone: a virtual environment is a link to the Python that it was made of.
    return there.parent.resolve() == here.parent.resolve() and there.resolve() == here.resolve()


@cache
def python_fault(path: str | None, *, is_local: bool) -> str:
    """Return why a Python cannot run tasks of this pack; empty where it can, or where only executors have it."""
    if path is None:
        return "is not there" if is_local else ""
    try:
        command = probe_command(path, _PROBE)
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True)
        major, minor, *missing = done.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return f"does not start ({type(error).__name__})"
    if (int(major), int(minor)) != sys.version_info[:2]:
        return f"is Python {major}.{minor}"
    return f"does not have {' and '.join(missing)}" if missing else ""
