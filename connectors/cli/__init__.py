"""The command line: ``connectors demo``, ``doctor``, ``fetch``, ``watch``, ``report``, ``protos`` and ``spool``."""
