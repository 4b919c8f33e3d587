"""Algorithms as callbacks; a run's stack is the trainer's ``callbacks`` list."""

from lfl.callback import FederatedCallback, Gradient
from lfl.callbacks.adversaries import GaussianUpdate, LabelFlip, ScaledUpdate, SignFlip
from lfl.callbacks.averaged_evaluation import AveragedEvaluation
from lfl.callbacks.client_evaluation import ClientEvaluation
from lfl.callbacks.diagnostics import Diagnostics
from lfl.callbacks.ditto import Ditto
from lfl.callbacks.downlink import Downlink
from lfl.callbacks.feddc import FedDC
from lfl.callbacks.feddyn import FedDyn
from lfl.callbacks.fedgen import FedGen
from lfl.callbacks.fednova import FedNova
from lfl.callbacks.fedntd import FedNTD
from lfl.callbacks.fedsub import FedSub
from lfl.callbacks.fetchsgd import FetchSGD
from lfl.callbacks.fl_ssgd import FLSSGD
from lfl.callbacks.fl_ssvrg import FLSSVRG
from lfl.callbacks.flanp import GradientNormStages
from lfl.callbacks.flss import FLSS
from lfl.callbacks.hyperbolic import HyperbolicRegularization
from lfl.callbacks.lbgm import LBGM
from lfl.callbacks.local_noise import LocalNoise
from lfl.callbacks.maml import MAML
from lfl.callbacks.momentum import ClientMomentum
from lfl.callbacks.moon import MOON
from lfl.callbacks.personal import PersonalParameters
from lfl.callbacks.pfedme import PFedMe
from lfl.callbacks.pictures import FeaturePictures, TrajectoryPictures
from lfl.callbacks.privacy import DifferentialPrivacy
from lfl.callbacks.proximal import Proximal
from lfl.callbacks.qsgd import QSGD
from lfl.callbacks.randomk import RandomK
from lfl.callbacks.sam import AdaptiveSharpnessAware, SharpnessAware
from lfl.callbacks.scaffold import Scaffold
from lfl.callbacks.sign import Sign
from lfl.callbacks.ssf import SSF
from lfl.callbacks.stc import STC
from lfl.callbacks.system_pictures import SystemPictures
from lfl.callbacks.topk import TopK

__all__ = [
    "FLSS",
    "FLSSGD",
    "FLSSVRG",
    "LBGM",
    "MAML",
    "MOON",
    "QSGD",
    "SSF",
    "STC",
    "AdaptiveSharpnessAware",
    "AveragedEvaluation",
    "ClientEvaluation",
    "ClientMomentum",
    "Diagnostics",
    "DifferentialPrivacy",
    "Ditto",
    "Downlink",
    "FeaturePictures",
    "FedDC",
    "FedDyn",
    "FedGen",
    "FedNTD",
    "FedNova",
    "FedSub",
    "FederatedCallback",
    "FetchSGD",
    "GaussianUpdate",
    "Gradient",
    "GradientNormStages",
    "HyperbolicRegularization",
    "LabelFlip",
    "LocalNoise",
    "PFedMe",
    "PersonalParameters",
    "Proximal",
    "RandomK",
    "Scaffold",
    "ScaledUpdate",
    "SharpnessAware",
    "Sign",
    "SignFlip",
    "SystemPictures",
    "TopK",
    "TrajectoryPictures",
]
