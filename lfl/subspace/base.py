"""The interfaces: a basis with orthonormal rows, and a subspace, which says how to draw one from an address."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from lfl.client.layout import ParameterLayout


class Basis(ABC):
    """One drawn basis P of shape ``(rank, dim)`` with orthonormal rows: ``P P^T = I``.

    The result of a method may share memory with its argument: do not write into either. The methods are not meant for
    autograd or vmap: the gradient with respect to coordinates is ``project(gradient)``.

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
    """Draws bases; this is the object that a configuration names."""

    @abstractmethod
    def check(self, layout: ParameterLayout) -> int:
        """Return the number of coordinates R of a basis for this layout, without drawing one.

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
        """Draw the basis of an address.

        Equal addresses give bit-equal bases on every device, so that a basis need not be sent: the numbers are drawn on
        the CPU in float64 and then rounded to ``dtype``. Where a QR decomposition is used, another LAPACK, or another
        number of threads, may change the last bit of float64.

        Args:
            layout: where each parameter lies in the vector.
            address: the draw's address in the sense of ``lfl.randomness``, such as ``(seed, "subspace", round)``.
            device: device of the vectors that the basis will be used on.
            dtype: type of those vectors.

        Raises:
            ValueError: the settings do not fit the layout.
        """


def check_rank(rank: int | float) -> int | float:
    """Return ``rank`` if it is valid: an int is a number of coordinates, a float their ratio to D (1.0 is all of them).

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
    """Draw a uniformly distributed basis ``(rank, dim)`` in float64: QR of a Gaussian matrix.

    QR determines Q up to signs, which LAPACK chooses; a positive diagonal of R makes the distribution uniform
    (F. Mezzadri, "How to Generate Random Matrices from the Classical Compact Groups", Notices of the AMS 54(5), 2007).
    """
    return orthonormal(torch.randn(dim, rank, generator=generator, dtype=torch.float64)).mT.contiguous()


def orthonormal(matrix: Tensor) -> Tensor:
    """The Q factor [d, k] of a matrix [d, k], with the signs that make R's diagonal positive."""
    q, r = torch.linalg.qr(matrix)
    factor: Tensor = q * torch.where(r.diagonal() < 0, -1, 1)
    return factor
