"""The command line ``lfl``: its parser, its errors on one line, its memory allocator."""

from lfl.cli.parser import FederatedCLI, run

__all__ = ["FederatedCLI", "run"]
