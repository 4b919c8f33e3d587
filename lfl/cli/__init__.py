"""The command line ``lfl``: its parser, its one-line errors, and its memory allocator."""

from lfl.cli.parser import FederatedCLI, ResolvingCLI, run

__all__ = ["FederatedCLI", "ResolvingCLI", "run"]
