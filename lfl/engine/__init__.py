"""Local engines: how the clients of a round are trained."""

from lfl.engine.base import LocalEngine
from lfl.engine.select import build_engine
from lfl.engine.sequential import SequentialEngine
from lfl.engine.vectorized import VectorizedEngine
from lfl.engine.work import LocalPhase, LocalWork

__all__ = ["LocalEngine", "LocalPhase", "LocalWork", "SequentialEngine", "VectorizedEngine", "build_engine"]
