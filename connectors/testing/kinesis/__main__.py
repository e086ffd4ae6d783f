"""Run the server: ``python -m connectors.testing.kinesis``."""

import sys

from connectors.testing.kinesis.server import main

sys.exit(main())
