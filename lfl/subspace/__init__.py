"""Random subspaces of the parameter space: bases with orthonormal rows, drawn from an address."""

from lfl.subspace.base import Basis, Subspace
from lfl.subspace.coordinate import CoordinateBasis, CoordinateSubspace
from lfl.subspace.dense import DenseBasis, DenseSubspace
from lfl.subspace.hadamard import HadamardBasis, HadamardSubspace
from lfl.subspace.identity import IdentityBasis, IdentitySubspace
from lfl.subspace.layerwise import LayerwiseBasis, LayerwiseSubspace
from lfl.subspace.streaming import StreamingBasis, StreamingBlocks

__all__ = [
    "Basis",
    "CoordinateBasis",
    "CoordinateSubspace",
    "DenseBasis",
    "DenseSubspace",
    "HadamardBasis",
    "HadamardSubspace",
    "IdentityBasis",
    "IdentitySubspace",
    "LayerwiseBasis",
    "LayerwiseSubspace",
    "StreamingBasis",
    "StreamingBlocks",
    "Subspace",
]
