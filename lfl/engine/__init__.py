"""Local engines: how the clients of a round are trained."""

from lfl.client.work import LocalPhase, LocalWork
from lfl.engine.base import LocalEngine
from lfl.engine.select import EngineSettings, build_training
from lfl.engine.sequential import SequentialEngine
from lfl.engine.training import LocalTraining
from lfl.engine.vectorized import VectorizedEngine

__all__ = [
    "EngineSettings",
    "LocalEngine",
    "LocalPhase",
    "LocalTraining",
    "LocalWork",
    "SequentialEngine",
    "VectorizedEngine",
    "build_training",
]
