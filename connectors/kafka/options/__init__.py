"""Options of the ``kafka_py`` source and sink, and the settings of their clients."""
