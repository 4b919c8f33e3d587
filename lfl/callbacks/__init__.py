"""Algorithms as callbacks; a run's stack is the trainer's ``callbacks`` list."""

from lfl.callbacks.base import FederatedCallback, Gradient
from lfl.callbacks.fedsub import FedSub
from lfl.callbacks.proximal import Proximal
from lfl.callbacks.scaffold import Scaffold
from lfl.callbacks.ssf import SSF

__all__ = ["SSF", "FedSub", "FederatedCallback", "Gradient", "Proximal", "Scaffold"]
