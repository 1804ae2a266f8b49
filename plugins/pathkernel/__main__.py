"""Run the command line with ``python -m pathkernel``."""

from pathkernel.main import main

main()
