"""Run the server: ``python -m connectors.testing.object_store``."""

import sys

from connectors.testing.object_store.server import main

sys.exit(main())
