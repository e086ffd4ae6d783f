"""Run the command line: ``python -m connectors.cli``."""

from connectors.cli.main import main

main()
