"""Local engines: how the clients of a round are trained."""

from lfl.engine.base import LocalEngine, LocalWork
from lfl.engine.select import build_engine
from lfl.engine.sequential import SequentialEngine
from lfl.engine.vectorized import VectorizedEngine

__all__ = ["LocalEngine", "LocalWork", "SequentialEngine", "VectorizedEngine", "build_engine"]
