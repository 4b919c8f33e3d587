"""The command line."""

from lfl.cli.parser import FederatedCLI, run

__all__ = ["FederatedCLI", "run"]
