"""A stream over a spool: admission, planning, reading, compaction."""
