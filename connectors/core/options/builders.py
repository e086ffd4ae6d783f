"""Options as keyword arguments, so that an editor completes them and a type checker finds a wrong one.

    from connectors import options

    shop = options.pubsub(projectId="shop", subscriptionId="orders", spoolLocation="/data/spool/orders")
    events = spark.readStream.format("pubsub").options(**shop).load()

The types are in the stub beside this module, which ``./dev docs`` writes from the declarations. Give names that are not
identifiers, such as ``kafka.bootstrap.servers``, in a dictionary before the keyword arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectors.core.errors import OptionError
from connectors.core.formats import connector_named
from connectors.core.options.declaration import declared_options
from connectors.core.options.kinds import option_texts

__all__ = ["kafka_py", "kinesis", "pubsub"]


def kafka_py(settings: Mapping[str, object] | None = None, /, **options: object) -> dict[str, str]:
    """Return options for the format ``kafka_py``, for reads and writes; `settings` holds those with a dot.

    Raises:
        OptionError: an option is unknown.
    """
    return _texts("kafka", settings, options)


def kinesis(settings: Mapping[str, object] | None = None, /, **options: object) -> dict[str, str]:
    """Return options for the format ``kinesis``, for reads and writes.

    Raises:
        OptionError: an option is unknown.
    """
    return _texts("kinesis", settings, options)


def pubsub(settings: Mapping[str, object] | None = None, /, **options: object) -> dict[str, str]:
    """Return options for the format ``pubsub``, for reads and writes.

    Raises:
        OptionError: an option is unknown.
    """
    return _texts("pubsub", settings, options)


def _texts(package: str, settings: Mapping[str, object] | None, options: dict[str, Any]) -> dict[str, str]:
    connector = connector_named(package)
    declared = {
        name
        for cls in connector.option_classes().values()
        for declared in declared_options(cls).values()
        for name in (declared.name, *declared.aliases)
    }
    if unknown := options.keys() - declared:
        what = f"The option {min(unknown)} is unknown"
        raise OptionError("OPTION_UNKNOWN", what, connector.format, "Spell it as the reference does, case included.")
    return option_texts({**(settings or {}), **options})
