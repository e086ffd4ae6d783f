"""What a Python sees that Spark would start for its workers; prints one line of JSON.

`connectors.doctor.spark_workers` runs this text in the folder of the user and with whatever Python that is: so it
imports nothing of this pack by itself, and keeps to what older Pythons understand. What it needs itself does not come
from that folder. Then it imitates Spark's workers on purpose, which have that folder first on their path: the packages
are imported as those would, and a module there that has the name of one runs.
"""

import importlib
import importlib.machinery
import json
import pkgutil
import sys
from pathlib import Path

NEEDED = ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "google", "grpc", "botocore", "confluent_kafka", "ptars")


def version_of(name: str) -> object:
    """The version and the file of a package, or the error of its import."""
    try:
        module = importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - reported; a broken package may raise anything
        return {"error": type(error).__name__ + ": " + str(error)}
    return {"version": getattr(module, "__version__", None), "file": getattr(module, "__file__", None)}


def neighbours() -> object:
    """The modules in which Spark looks for data sources, as `lookup_data_sources` of its worker finds them."""
    found = []
    for info in pkgutil.iter_modules():
        if not info.name.startswith("pyspark_"):
            continue
        try:
            source = getattr(importlib.import_module(info.name), "DefaultSource", None)
            found.append({"module": info.name, "format": None if source is None else source.name()})
        except BaseException as error:  # noqa: BLE001 - whatever it raises ends Spark's look-up
            found.append({"module": info.name, "error": type(error).__name__ + ": " + str(error)})
    return found


def shadows() -> object:
    """The modules of the working folder that have the name of a package which Spark or a source of the pack needs."""
    found = {}
    for name in NEEDED:
        spec = importlib.machinery.PathFinder.find_spec(name, [str(Path.cwd())])
        if spec is not None and spec.origin is not None and "site-packages" not in spec.origin:
            found[name] = spec.origin
    return found


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):  # PYTHONSAFEPATH holds for the workers too
        sys.path.insert(0, "")  # as Spark's workers have it
    packages = {name: version_of(name) for name in ("pyspark", "pyarrow", "pandas", "connectors")}
    seen = {
        "version": list(sys.version_info[:3]),
        "executable": sys.executable,
        "packages": packages,
        "neighbours": neighbours(),
        "shadows": shadows(),
    }
    sys.stdout.write("\n" + json.dumps(seen) + "\n")
