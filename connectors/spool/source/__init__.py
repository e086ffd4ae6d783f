"""What is the same for each source that stands on a spool: options, readers, and what starts its fetchers."""
