"""Options of sources and sinks: their declaration, the kinds of value, and secrets."""
