"""Algorithms as callbacks; a run's stack is the trainer's ``callbacks`` list."""

from lfl.callbacks.base import FederatedCallback, Gradient
from lfl.callbacks.fedsub import FedSub
from lfl.callbacks.fl_ssgd import FLSSGD
from lfl.callbacks.fl_ssvrg import FLSSVRG
from lfl.callbacks.proximal import Proximal
from lfl.callbacks.randomk import RandomK
from lfl.callbacks.scaffold import Scaffold
from lfl.callbacks.ssf import SSF
from lfl.callbacks.topk import TopK

__all__ = [
    "FLSSGD",
    "FLSSVRG",
    "SSF",
    "FedSub",
    "FederatedCallback",
    "Gradient",
    "Proximal",
    "RandomK",
    "Scaffold",
    "TopK",
]
