"""``python -m lfl``."""

from lfl.cli import main

main()
