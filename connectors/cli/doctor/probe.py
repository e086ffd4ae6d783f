"""What a Python sees that Spark would start for its workers; prints one line of JSON.

`connectors.cli.doctor.machine` runs this text in the folder of the user and with whatever Python that is: so it imports
nothing of this pack by itself, and keeps to what older Pythons understand. What it needs itself does not come from that
folder. Then it imitates Spark's workers on purpose, which have that folder first on their path: the packages are
imported as those would, and a module there that has the name of one runs.
"""

import importlib
import json
import pkgutil
import sys


def seen(name: str) -> object:
    """Import a module; return its version, its file and its data source, or the error."""
    try:
        module = importlib.import_module(name)
        source = getattr(module, "DefaultSource", None)
        return {
            "version": getattr(module, "__version__", None),
            "file": getattr(module, "__file__", None),
            "format": None if source is None else source.name(),
        }
    except BaseException as error:  # noqa: BLE001 - reported; a broken package may raise anything
        return {"error": type(error).__name__ + ": " + str(error)}


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):  # PYTHONSAFEPATH holds for the workers too
        sys.path.insert(0, "")  # as Spark's workers have it
    packages = {name: seen(name) for name in ("pyarrow", "connectors")}
    # As `lookup_data_sources` of Spark's worker finds them.
    neighbours = {info.name: seen(info.name) for info in pkgutil.iter_modules() if info.name.startswith("pyspark_")}
    result = {"version": list(sys.version_info[:3]), "packages": packages, "neighbours": neighbours}
    sys.stdout.write("\n" + json.dumps(result) + "\n")
