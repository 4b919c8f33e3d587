"""Benchmarks, and the experiments of papers: run from the repository's root as ``python -m tools.benchmarks.speed``."""

from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
CONFIGS = REPOSITORY / "configs"
