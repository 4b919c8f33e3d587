"""What a random subspace is: a basis with orthonormal rows, drawn from an address."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from lfl.client.layout import ParameterLayout


class Basis(ABC):
    """One drawn basis P of shape ``(rank, dim)`` with orthonormal rows: ``P P^T = I``.

    The results of both methods may share memory with the argument: do not write into either. Neither method is meant
    for autograd or vmap: the gradient in coordinates is ``project(gradient)``.

    Attributes:
        dim: D, the length of the parameter vector.
        rank: R, the number of coordinates.
    """

    dim: int
    rank: int

    @abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """Coordinates ``P x`` of vectors: ``(..., dim)`` to ``(..., rank)``."""

    @abstractmethod
    def lift(self, z: Tensor) -> Tensor:
        """The vectors ``P^T z`` that have the coordinates ``z``: ``(..., rank)`` to ``(..., dim)``."""


class Subspace(ABC):
    """How to draw a basis; the object that a configuration names."""

    @abstractmethod
    def check(self, layout: ParameterLayout) -> int:
        """The number of coordinates R that a basis for this layout has; costs nothing.

        Raises:
            ValueError: the settings do not fit the layout.
        """

    @abstractmethod
    def draw(
        self,
        layout: ParameterLayout,
        address: tuple[int | str, ...],
        device: torch.device,
        dtype: torch.dtype,
    ) -> Basis:
        """The basis at an address.

        Equal addresses give bit-equal bases, whatever the device, so a basis drawn from a seed is never sent: the
        numbers are drawn on the CPU in float64 and then rounded to ``dtype``. Where a QR decomposition is used, another
        LAPACK, or another number of threads, may change the last bit of float64.

        Args:
            layout: where each parameter lies in the vector.
            address: the draw's address in the sense of ``lfl.randomness``, such as ``(seed, "subspace", round)``.
            device: where the basis is used.
            dtype: type of the vectors it is used on.

        Raises:
            ValueError: as ``check``.
        """


def check_rank(rank: int | float) -> int | float:
    """The argument, if it can be a rank: an int counts coordinates, a float is a ratio, 1.0 all of them.

    Raises:
        ValueError: an int below 1, or a float outside (0, 1].
    """
    if isinstance(rank, int) and rank < 1:
        raise ValueError(f"`rank={rank}` must be at least 1 (a number of coordinates) or a float in (0, 1] (a ratio).")
    if isinstance(rank, float) and not 0 < rank <= 1:
        hint = f" For a number of coordinates write the int {int(rank)}." if rank > 1 and math.isfinite(rank) else ""
        raise ValueError(f"`rank={rank}` is a float and so a ratio: it must be in (0, 1].{hint}")
    return rank


def count_rank(rank: int | float, dim: int) -> int:
    """The number of coordinates that ``rank`` means in ``dim`` dimensions; a ratio gives at least one.

    Raises:
        ValueError: an int above ``dim``.
    """
    if isinstance(rank, float):
        return max(1, round(rank * dim))
    if rank > dim:
        raise ValueError(
            f"`rank={rank}` must not exceed D={dim}, the number of parameters: "
            f"use an int of at most {dim}, or a float in (0, 1] for a ratio of D."
        )
    return rank


def orthonormal_rows(rank: int, dim: int, generator: torch.Generator) -> Tensor:
    """A uniformly distributed basis ``(rank, dim)`` in float64: QR of a Gaussian matrix.

    LAPACK leaves the signs of Q open; a positive diagonal of R fixes them, and makes the distribution uniform
    (F. Mezzadri, "How to Generate Random Matrices from the Classical Compact Groups", Notices of the AMS 54(5), 2007).
    """
    return orthonormal(torch.randn(dim, rank, generator=generator, dtype=torch.float64)).mT.contiguous()


def orthonormal(matrix: Tensor) -> Tensor:
    """The Q factor [d, k] of a matrix [d, k], with the signs that make R's diagonal positive."""
    q, r = torch.linalg.qr(matrix)
    factor: Tensor = q * torch.where(r.diagonal() < 0, -1, 1)
    return factor
