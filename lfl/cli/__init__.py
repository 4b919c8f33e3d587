"""The command line ``lfl``: its parser, its one-line errors, and its memory allocator."""

from lfl.cli.parser import FederatedCLI, run

__all__ = ["FederatedCLI", "run"]
