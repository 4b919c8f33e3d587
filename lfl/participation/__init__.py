"""The clients that take part in a round."""

from lfl.participation.asynchronous import AsynchronousParticipation
from lfl.participation.base import Participation
from lfl.participation.drawn import (
    FullParticipation,
    PoissonParticipation,
    UniformParticipation,
    VaryingParticipation,
)
from lfl.participation.fastest import DoublingParticipation, FastestParticipation
from lfl.participation.fixed import FixedParticipation
from lfl.participation.held_out import HeldOutParticipation

__all__ = [
    "AsynchronousParticipation",
    "DoublingParticipation",
    "FastestParticipation",
    "FixedParticipation",
    "FullParticipation",
    "HeldOutParticipation",
    "Participation",
    "PoissonParticipation",
    "UniformParticipation",
    "VaryingParticipation",
]
