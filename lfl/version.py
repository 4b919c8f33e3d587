"""The version of lfl, in one place: the package's metadata, `lfl --version` and checkpoints take it from here."""

__version__ = "0.2.0"
