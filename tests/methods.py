"""Every method and stack once: the suites that must hold for all of them are parametrised over this list alone."""

from collections.abc import Callable

from lfl.callbacks import FLSSGD, FLSSVRG, SSF, FederatedCallback, FedSub, Proximal, RandomK, Scaffold, TopK
from lfl.subspace import (
    CoordinateSubspace,
    DenseSubspace,
    HadamardSubspace,
    IdentitySubspace,
    LayerwiseSubspace,
)

Stack = Callable[[], list[FederatedCallback]]

METHODS: dict[str, Stack] = {
    "fedavg": list,
    "fedprox": lambda: [Proximal(mu=0.1)],
    "scaffold-1": lambda: [Scaffold(option="I")],
    "scaffold-2": lambda: [Scaffold(option="II")],
    "ssf-layerwise": lambda: [SSF(LayerwiseSubspace(0.3))],
    "ssf-coordinate": lambda: [SSF(CoordinateSubspace(0.3), refresh_every=2)],
    "ssf-hadamard": lambda: [SSF(HadamardSubspace(0.3))],
    "fedsub": lambda: [FedSub(LayerwiseSubspace(0.3), refresh_every=2)],
    "top-k": lambda: [TopK(0.1)],
    "random-k": lambda: [RandomK(0.1)],
    "fl-ssgd": lambda: [FLSSGD(40.5)],
    "fl-ssvrg": lambda: [FLSSVRG(20, 30.5, epoch_rounds=2)],
    "fedprox+scaffold": lambda: [Proximal(mu=0.1), Scaffold()],
    "fedprox+top-k": lambda: [Proximal(mu=0.1), TopK(0.1)],
    "fedprox+ssf": lambda: [Proximal(mu=0.1), SSF(LayerwiseSubspace(0.3))],
}

# Bases that store a matrix over all parameters: small models only.
SMALL_MODELS_ONLY: dict[str, Stack] = {
    "ssf-dense": lambda: [SSF(DenseSubspace(7))],
    "ssf-identity": lambda: [SSF(IdentitySubspace())],
}
