"""Every method and stack once: the suites that must hold for all of them are parametrised over this list alone."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from worlds import train

from lfl.aggregation import (
    CoordinateMedian,
    FedAdam,
    FedAsync,
    FedBuff,
    FedExP,
    GeometricMedian,
    Krum,
    MedianNormClipping,
    NormalizedReaggregation,
    TrimmedMean,
)
from lfl.callbacks import (
    FLSS,
    FLSSGD,
    FLSSVRG,
    LBGM,
    MAML,
    MOON,
    QSGD,
    SSF,
    STC,
    AdaptiveSharpnessAware,
    ClientEvaluation,
    ClientMomentum,
    DifferentialPrivacy,
    Ditto,
    Downlink,
    FedDC,
    FedDyn,
    FederatedCallback,
    FedGen,
    FedNova,
    FedNTD,
    FedSub,
    FetchSGD,
    HyperbolicRegularization,
    LabelFlip,
    LocalNoise,
    PersonalParameters,
    PFedMe,
    Proximal,
    RandomK,
    Scaffold,
    SharpnessAware,
    Sign,
    SignFlip,
    TopK,
)
from lfl.data import FederatedData
from lfl.engine import LocalPhase
from lfl.participation import AsynchronousParticipation, DoublingParticipation, PoissonParticipation
from lfl.subspace import (
    CoordinateSubspace,
    DenseSubspace,
    HadamardSubspace,
    IdentitySubspace,
    LayerwiseSubspace,
)
from lfl.system import Consecutive, ExponentialSpeeds, Links, PerExample, Unreliable
from lfl.trainer import FederatedTrainer

Stack = Callable[[], list[FederatedCallback]]


def also(*values: Any) -> Any:
    """Further values of a parameter, for ``-m slow``: the fast part has every method once in each suite."""
    return pytest.param(*values, marks=pytest.mark.slow)


def dealt(names: Iterable[str], *settings: Any) -> list[Any]:
    """Every name with every setting: with one of them, by turns, for the fast part; with the others for ``-m slow``."""
    return [
        (name, *setting) if turn % len(settings) == place else also(name, *setting)
        for turn, name in enumerate(names)
        for place, setting in enumerate(settings)
    ]


METHODS: dict[str, Stack] = {
    "fedavg": list,
    "fedprox": lambda: [Proximal(mu=0.1)],
    "scaffold-1": lambda: [Scaffold(option="I")],
    "scaffold-2": lambda: [Scaffold(option="II")],
    "ssf-layerwise": lambda: [SSF(LayerwiseSubspace(0.3))],
    "ssf-coordinate": lambda: [SSF(CoordinateSubspace(0.3), refresh_every=2)],
    "ssf-hadamard": lambda: [SSF(HadamardSubspace(0.3))],
    "fedsub": lambda: [FedSub(LayerwiseSubspace(0.3), refresh_every=2)],
    "fedsub-stale": lambda: [FedSub(LayerwiseSubspace(0.3), refresh_every=2, variant="stale")],
    "top-k": lambda: [TopK(0.1)],
    "random-k": lambda: [RandomK(0.1)],
    "sign": lambda: [Sign()],
    "sign-vote": lambda: [Sign(error_feedback=False, vote="majority")],
    "qsgd+downlink": lambda: [QSGD(4), Downlink(TopK(0.1))],
    "stc": lambda: [STC(0.1)],
    "lbgm": lambda: [LBGM(0.5, scope="tensor")],
    "fetchsgd": lambda: [FetchSGD(rows=3, columns=60, k=20, momentum=0.5)],
    "flss": lambda: [FLSS(warmup_rounds=1, rank=3, sample_every=2)],
    "flss-gradients": lambda: [FLSS(2, 3, 2, project="both", warmup="auto", scope="layer", rate_scale=1.5)],
    "sign+flss": lambda: [FLSS(warmup_rounds=1, rank=3, sample_every=2), Sign()],
    "top-k+flss": lambda: [FLSS(warmup_rounds=1, rank=3, sample_every=2, subspace="random"), TopK(0.1)],
    "fl-ssgd": lambda: [FLSSGD(40.5)],
    "fl-ssvrg": lambda: [FLSSVRG(20, 30.5, epoch_rounds=2)],
    "fedprox+scaffold": lambda: [Proximal(mu=0.1), Scaffold()],
    "fedprox+top-k": lambda: [Proximal(mu=0.1), TopK(0.1)],
    "fedprox+ssf": lambda: [Proximal(mu=0.1), SSF(LayerwiseSubspace(0.3))],
    "fedrep": lambda: [PersonalParameters(["*.head.*"])],
    "fedrep-srpfl": lambda: [PersonalParameters(["*.head.*"])],
    "lg-fedavg": lambda: [PersonalParameters(["*.head.*"]), ClientEvaluation(every_n_rounds=1)],
    "flanp": list,
    "fedasync": list,
    "fedbuff+fedrep+scaffold": lambda: [PersonalParameters(["*.head.*"]), Scaffold()],
    "fedrep+flss": lambda: [PersonalParameters(["*.head.*"]), FLSS(1, 2, 2, scope="layer")],
    "fedmrur-n+flss": lambda: [
        SharpnessAware(0.05),
        ClientMomentum(0.5, momentum_from="aggregate"),
        FLSS(warmup_rounds=1, rank=2, sample_every=2),
    ],
    "fedprox+fedrep": lambda: [PersonalParameters(["*.head.*"]), Proximal(mu=0.1)],
    "scaffold+srpfl": lambda: [PersonalParameters(["*.head.*"]), Scaffold()],
    "fedsam": lambda: [SharpnessAware(0.1)],
    "fedasam": lambda: [AdaptiveSharpnessAware(0.5, eta=0.2)],
    "moon": lambda: [MOON("backbone", mu=0.5)],
    "fedntd": lambda: [FedNTD(beta=0.5)],
    "fedgen": lambda: [FedGen(noise=3, hidden=6, batch_size=4, server_steps=3, weight=1.0, distillation=1.0)],
    "fedcm": lambda: [ClientMomentum(0.3)],
    "mofedsam": lambda: [SharpnessAware(0.1), ClientMomentum(0.3)],
    "fedmrur": lambda: [
        HyperbolicRegularization("backbone", gamma=0.5, sigma=10.0),
        SharpnessAware(0.1),
        ClientMomentum(0.3, momentum_from="aggregate"),
    ],
    "scaffold+sam": lambda: [SharpnessAware(0.1), Scaffold()],
    "fedcm+fedprox": lambda: [Proximal(mu=0.1), ClientMomentum(0.3)],
    "ssf+sam": lambda: [SharpnessAware(0.1), SSF(LayerwiseSubspace(0.3))],
    "feddyn": lambda: [FedDyn(0.1)],
    "feddc": lambda: [FedDC(0.1)],
    "feddyn+flss": lambda: [FedDyn(0.1), FLSS(warmup_rounds=1, rank=2, sample_every=2)],
    "fedadam": list,
    "fedexp": list,
    "fedprox+fednova": lambda: [Proximal(mu=0.1), FedNova()],
    "median": list,
    "geometric-median": list,
    "norm-clipping": list,
    "krum+top-k": lambda: [TopK(0.1)],
    "fedrep+trimmed-mean": lambda: [PersonalParameters(["*.head.*"])],
    "dp-fedavg": lambda: [DifferentialPrivacy(0.5, clip=0.3, quantile=0.5)],
    "local-noise": lambda: [LocalNoise(0.01, clip=0.3)],
    "ditto": lambda: [Ditto(lam=0.3), ClientEvaluation(every_n_rounds=1)],
    "pfedme": lambda: [PFedMe(lam=5.0, inner_steps=2, inner_lr=0.05)],
    "hf-maml": lambda: [MAML(alpha=0.05)],
    "adversaries+top-k": lambda: [LabelFlip(share=0.4), SignFlip(share=0.3), TopK(0.1)],
    "scaffold+deadline": lambda: [Scaffold()],
    "fedavg-fine-tuned": lambda: [
        ClientEvaluation(1, [LocalPhase(epochs=2, lr=0.05)], scopes=["server", "personal", "fine_tuned"])
    ],
}

# What a method needs of the trainer besides its callbacks.
_HEAD_THEN_BODY = [LocalPhase(["*.head.*"], epochs=2, lr=0.05), LocalPhase(["backbone.[!h]*"], steps=3)]
_DOUBLING = {
    "participation": DoublingParticipation(clients_per_round=6, initial=2, rounds_per_stage=1),
    "system": ExponentialSpeeds(dynamic=True, communication=0.1),
}
# Every round of the suites has somebody on time, most have somebody who is late or drops out.
_UNRELIABLE = Unreliable(
    Consecutive([PerExample(ExponentialSpeeds(means=0.02, dynamic=True)), Links(up=1e6, down=1e7)]),
    deadline=0.5,
    dropout=0.15,
)
_LATE = ExponentialSpeeds(means=[1.0, 9.0], dynamic=True, communication=0.1)
OPTIONS: dict[str, dict[str, Any]] = {
    "dp-fedavg": {"participation": PoissonParticipation(0.5)},
    "fedmrur": {"aggregator": NormalizedReaggregation()},
    "fl-ssvrg": {"local_steps": 1},
    "fedrep": {"local_phases": _HEAD_THEN_BODY},
    "fedrep+flss": {"local_phases": _HEAD_THEN_BODY},
    "fedmrur-n+flss": {"aggregator": NormalizedReaggregation()},
    "fedrep-srpfl": {"local_phases": _HEAD_THEN_BODY, **_DOUBLING},
    "fedrep+trimmed-mean": {"local_phases": _HEAD_THEN_BODY, "aggregator": TrimmedMean(0.2)},
    "flanp": _DOUBLING,
    "fedadam": {"server_optimizer": lambda params: FedAdam(params, lr=0.1, tau=0.1)},
    "fedasync": {"participation": AsynchronousParticipation(4), "system": _LATE, "aggregator": FedAsync()},
    "fedbuff+fedrep+scaffold": {
        "local_phases": _HEAD_THEN_BODY,
        "participation": AsynchronousParticipation(5, 3),
        "system": _LATE,
        "aggregator": FedBuff(),
    },
    "fedexp": {"aggregator": FedExP()},
    "fedprox+fednova": {"local_phases": [LocalPhase(epochs=3, min_epochs=1, stragglers=0.7)]},
    "geometric-median": {"aggregator": GeometricMedian()},
    "krum+top-k": {"aggregator": Krum(1, selected=2)},
    "median": {"aggregator": CoordinateMedian()},
    "norm-clipping": {"aggregator": MedianNormClipping()},
    "sign-vote": {"server_optimizer": lambda params: torch.optim.SGD(params, lr=0.01)},
    "scaffold+deadline": {"system": _UNRELIABLE},
    "scaffold+srpfl": {"local_phases": _HEAD_THEN_BODY, **_DOUBLING},
}

# Bases that store a matrix over all parameters: small models only.
SMALL_MODELS_ONLY: dict[str, Stack] = {
    "ssf-dense": lambda: [SSF(DenseSubspace(7))],
    "ssf-identity": lambda: [SSF(IdentitySubspace())],
}


def train_method(
    method: str, folder: Path, module: LightningModule | None = None, data: FederatedData | None = None, **options: Any
) -> FederatedTrainer:
    """``worlds.train`` with a method's callbacks and what else it needs."""
    needed = OPTIONS.get(method, {})
    if {"local_phases", "local_steps"} & set(needed):
        options.pop("local_epochs", None)
    return train(METHODS[method](), folder, module, data, **{**needed, **options})


def fedmrur(gamma: float = 0.5, rho: float = 0.1, alpha: float = 0.3, **options: Any) -> list[FederatedCallback]:
    """Strong enough to be seen in a few rounds of a small model."""
    term = HyperbolicRegularization("backbone", gamma=gamma, **{"sigma": 10.0, **options})
    return [term, SharpnessAware(rho), ClientMomentum(alpha)]
