"""Run the server: ``python -m connectors.testing.pubsub``."""

import sys

from connectors.testing.pubsub.server import main

sys.exit(main())
