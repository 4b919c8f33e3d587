"""Reports of run folders: the command ``lfl report``, and ``load`` for notebooks."""

from lfl.report.frames import load

__all__ = ["load"]
