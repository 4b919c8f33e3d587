"""Benchmarks, and the experiments of papers: commands that run from the repository's root by ``python -m``."""

from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
CONFIGS = REPOSITORY / "configs"
