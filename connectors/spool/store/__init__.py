"""Where a spool lives: a local file system or an object store."""
