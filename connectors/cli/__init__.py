"""The command line: ``connectors demo``, ``doctor``, ``fetch``, ``watch``, ``report`` and ``spool``."""
