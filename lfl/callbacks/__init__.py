"""Algorithms as callbacks; a run's stack is the trainer's ``callbacks`` list."""

from lfl.callback import FederatedCallback, Gradient
from lfl.callbacks.adversaries import GaussianUpdate, LabelFlip, ScaledUpdate, SignFlip
from lfl.callbacks.client_evaluation import ClientEvaluation
from lfl.callbacks.diagnostics import Diagnostics
from lfl.callbacks.ditto import Ditto
from lfl.callbacks.fedsub import FedSub
from lfl.callbacks.fl_ssgd import FLSSGD
from lfl.callbacks.fl_ssvrg import FLSSVRG
from lfl.callbacks.flss import FLSS
from lfl.callbacks.hyperbolic import HyperbolicRegularization
from lfl.callbacks.maml import MAML
from lfl.callbacks.momentum import ClientMomentum
from lfl.callbacks.personal import PersonalParameters
from lfl.callbacks.pfedme import PFedMe
from lfl.callbacks.proximal import Proximal
from lfl.callbacks.randomk import RandomK
from lfl.callbacks.sam import SharpnessAware
from lfl.callbacks.scaffold import Scaffold
from lfl.callbacks.sign import Sign
from lfl.callbacks.ssf import SSF
from lfl.callbacks.topk import TopK

__all__ = [
    "FLSS",
    "FLSSGD",
    "FLSSVRG",
    "MAML",
    "SSF",
    "ClientEvaluation",
    "ClientMomentum",
    "Diagnostics",
    "Ditto",
    "FedSub",
    "FederatedCallback",
    "GaussianUpdate",
    "Gradient",
    "HyperbolicRegularization",
    "LabelFlip",
    "PFedMe",
    "PersonalParameters",
    "Proximal",
    "RandomK",
    "Scaffold",
    "ScaledUpdate",
    "SharpnessAware",
    "Sign",
    "SignFlip",
    "TopK",
]
