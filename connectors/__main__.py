"""Run the command line: ``python -m connectors``, where the folder of its script is not in the path."""

from connectors.cli.__main__ import main

main()
