"""Building blocks of the checks of ``connectors doctor``."""
