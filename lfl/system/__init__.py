"""The time that the rounds of a simulated system take, and the clients that they lose."""

from lfl.system.around import AroundSpeeds, CorrelatedSpeeds, PerExample, Stragglers
from lfl.system.base import Answers, System, Workload
from lfl.system.exponential import ExponentialSpeeds, ShiftedExponentialSpeeds
from lfl.system.links import Consecutive, Links
from lfl.system.speeds import ClientTimes, EqualSpeeds, FixedTimes, Speeds
from lfl.system.trace import TraceTimes
from lfl.system.unreliable import Unreliable
from lfl.system.uplink import ChannelSharing, TimeSharing, Uplink

__all__ = [
    "Answers",
    "AroundSpeeds",
    "ChannelSharing",
    "ClientTimes",
    "Consecutive",
    "CorrelatedSpeeds",
    "EqualSpeeds",
    "ExponentialSpeeds",
    "FixedTimes",
    "Links",
    "PerExample",
    "ShiftedExponentialSpeeds",
    "Speeds",
    "Stragglers",
    "System",
    "TimeSharing",
    "TraceTimes",
    "Unreliable",
    "Uplink",
    "Workload",
]
