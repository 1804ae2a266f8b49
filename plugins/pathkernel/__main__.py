"""Run the command line with ``python -m pathkernel``."""

from pathkernel.start import main

main()
