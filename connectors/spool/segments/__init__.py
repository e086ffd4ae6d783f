"""Files of a spool: segments of fetched rows, and runs of admitted ids."""
