"""Run the command line with ``python -m pathkernel_cli``."""

from pathkernel_cli.main import main

main()
