"""A basis that follows a stream of vectors: their leading singular subspace, updated by one vector at a time.

"Federated Learning in Streaming Subspace", Algorithm 2 (SLDS). The paper takes the eigenvectors of the Gram matrix of
``[lambda P Sigma, g]`` and divides by singular values. Squaring loses the small ones, and with them the orthonormality
of P. Here ``[lambda P Sigma, g]`` itself is decomposed: M. Brand, "Fast Low-Rank Modifications of the Thin Singular
Value Decomposition", Linear Algebra and its Applications 415(1), 2006. The columns of the paper's P are our rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lfl.randomness import generator
from lfl.subspace.base import Basis, orthonormal_rows


class StreamingBasis(Basis):
    """The R leading left singular vectors of all vectors seen, as orthonormal rows, with their singular values.

    It begins empty (``rank`` 0) and has fewer than R rows while the vectors span fewer dimensions. Rows and singular
    values have the type of the vectors; small matrices are decomposed in float64 on the CPU. Memory: ``r n`` numbers,
    twice that in ``update``. Signs are left as LAPACK gives them: ``lift(project(x))`` depends on the span only.

    Args:
        max_rank: largest number of rows (R).
        like: a vector [n] with the type and the device of the vectors to follow.

    Attributes:
        rows: P [r, n].
        singular_values: Sigma [r], descending.
        energy: sum of the squares of all vectors seen, weighted as in P; what is not in ``singular_values`` was left
            out of the basis.

    Example:
        >>> basis = StreamingBasis(2, torch.zeros(3))
        >>> for vector in ([0.0, 3.0, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, 1.0]):
        ...     basis.update(torch.tensor(vector))
        >>> basis.singular_values.tolist(), basis.rows.abs().tolist()
        ([4.0, 3.0], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    """

    def __init__(self, max_rank: int, like: Tensor) -> None:
        self.max_rank = max_rank
        self.energy = 0.0
        self.singular_values = like.new_zeros(0)
        self._hold(like.new_zeros(0, len(like)), self.singular_values)

    @property
    def parts(self) -> list[StreamingBasis]:
        """The bases that it consists of: itself alone."""
        return [self]

    @override
    def project(self, x: Tensor) -> Tensor:
        return x @ self.rows.mT

    @override
    def lift(self, z: Tensor) -> Tensor:
        return z @ self.rows

    def start(self, vectors: Tensor) -> None:
        """Start from the leading singular vectors of ``vectors`` [L, n], without centring them.

        Needs the memory of ``vectors`` once more, for a QR decomposition.
        """
        # QR first: the n x L matrix has the left singular vectors Q U, with U those of the L x L triangle.
        q, triangle = torch.linalg.qr(vectors.mT)
        left, values = self._leading(triangle)
        self.energy = float(triangle.double().square().sum())
        rank = int((values > _negligible(q.dtype) * values[0]).sum())
        self._hold(left[:, :rank].mT @ q.mT, values[:rank])

    def update(self, vector: Tensor, attenuation: float = 1.0) -> None:
        """Replace P and Sigma by the leading singular pairs of ``[attenuation * P Sigma, vector]`` (SLDS).

        A vector of zeros attenuates the singular values and leaves P as it is.

        Args:
            vector: the next vector, g [n].
            attenuation: lambda in (0, 1], the weight of the past.
        """
        past = attenuation * self.singular_values
        norm = torch.linalg.vector_norm(vector)
        self.energy = attenuation**2 * self.energy + float(norm) ** 2
        if norm == 0:
            self.singular_values = past
            return
        inside = self.project(vector)
        outside = vector - self.lift(inside)
        # Project a second time: the first difference is orthogonal to P only up to the rounding of |g|, which is large
        # beside `outside` if g lies almost in the span.
        missed = self.project(outside)
        inside = inside + missed
        outside = outside - self.lift(missed)
        distance = torch.linalg.vector_norm(outside)
        # [lambda P Sigma, g] = [P, outside / distance] core, with core [r + 1, r + 1]: its singular vectors rotate the
        # orthonormal rows of the left factor into those of the new basis.
        core = torch.block_diag(past.diag(), distance)
        core[:-1, -1] = inside
        if distance <= _negligible(vector.dtype) * norm:
            # g lies in the span: `outside` is rounding, and no direction. The last row of core is zero.
            left, values = self._leading(core[:-1])
            rows = left.mT @ self.rows
        else:
            left, values = self._leading(core)
            rows = (left[:-1].mT @ self.rows).addr_(left[-1], outside / distance)
        self._hold(rows, values)

    def draw(self, address: tuple[int | str, ...]) -> None:
        """Take R uniformly random rows of an address instead: they follow no vectors, singular values are zero."""
        rows = orthonormal_rows(min(self.max_rank, self.dim), self.dim, generator(*address)).to(self.rows)
        self._hold(rows, rows.new_zeros(len(rows)))
        self.energy = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Rows, singular values and energy, on the CPU."""
        return {"rows": self.rows.cpu(), "singular_values": self.singular_values.cpu(), "energy": self.energy}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        self._hold(state["rows"].to(self.rows), state["singular_values"].to(self.rows))
        self.energy = state["energy"]

    def _hold(self, rows: Tensor, singular_values: Tensor) -> None:
        self.rows = rows
        self.singular_values = singular_values
        self.rank, self.dim = rows.shape

    def _leading(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """The first R left singular vectors [m, r] and singular values [r] of a small matrix."""
        left, values, _ = torch.linalg.svd(matrix.double().cpu(), full_matrices=False)
        return left[:, : self.max_rank].to(matrix), values[: self.max_rank].to(matrix)


class StreamingBlocks(Basis):
    """A streaming basis for each of several neighbouring stretches of a vector, such as the layers of a network.

    Coordinates are those of the first stretch, of the second, ...: r is the sum of their ranks. Memory as for one basis
    of the whole vector, and less in ``start``, which decomposes one stretch after another.

    Args:
        max_rank: largest number of rows of each stretch (R).
        like: a vector [n] with the type and the device of the vectors to follow.
        sizes: lengths of the stretches, n in all.

    Attributes:
        parts: the bases of the stretches.

    Example:
        >>> basis = StreamingBlocks(1, torch.zeros(3), [2, 1])
        >>> basis.update(torch.tensor([3.0, 4.0, 2.0]))
        >>> basis.project(torch.tensor([3.0, 4.0, 1.0])).abs().tolist()
        [5.0, 1.0]
    """

    def __init__(self, max_rank: int, like: Tensor, sizes: Sequence[int]) -> None:
        self.parts = [StreamingBasis(max_rank, piece) for piece in like.split(list(sizes))]
        self._count()

    @override
    def project(self, x: Tensor) -> Tensor:
        return BlockBasis(self.parts).project(x)

    @override
    def lift(self, z: Tensor) -> Tensor:
        return BlockBasis(self.parts).lift(z)

    def start(self, vectors: Tensor) -> None:
        """Start each stretch from its leading singular vectors of ``vectors`` [L, n], see ``StreamingBasis.start``."""
        for part, piece in zip(self.parts, self._pieces(vectors), strict=True):
            part.start(piece)
        self._count()

    def update(self, vector: Tensor, attenuation: float = 1.0) -> None:
        """Follow a vector [n] in each stretch, see ``StreamingBasis.update``."""
        for part, piece in zip(self.parts, self._pieces(vector), strict=True):
            part.update(piece, attenuation)
        self._count()

    def draw(self, address: tuple[int | str, ...]) -> None:
        """Take random rows instead in each stretch, see ``StreamingBasis.draw``."""
        for number, part in enumerate(self.parts):
            part.draw((*address, number))
        self._count()

    def state_dict(self) -> dict[str, Any]:
        """The states of the stretches."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)
        self._count()

    def _pieces(self, vectors: Tensor) -> Sequence[Tensor]:
        pieces: Sequence[Tensor] = vectors.split([part.dim for part in self.parts], dim=-1)
        return pieces

    def _count(self) -> None:
        self.dim, self.rank = (sum(sizes) for sizes in zip(*((p.dim, p.rank) for p in self.parts), strict=True))


class BlockBasis(Basis):
    """Bases of neighbouring stretches of a vector as one, block-diagonal.

    Args:
        blocks: the bases, in the order of the stretches.
    """

    def __init__(self, blocks: Sequence[Basis]) -> None:
        self._blocks = blocks
        self._dims = [block.dim for block in blocks]
        self._ranks = [block.rank for block in blocks]
        self.dim, self.rank = sum(self._dims), sum(self._ranks)

    @override
    def project(self, x: Tensor) -> Tensor:
        pieces = zip(self._blocks, x.split(self._dims, dim=-1), strict=True)
        return torch.cat([block.project(piece) for block, piece in pieces], dim=-1)

    @override
    def lift(self, z: Tensor) -> Tensor:
        pieces = zip(self._blocks, z.split(self._ranks, dim=-1), strict=True)
        return torch.cat([block.lift(piece) for block, piece in pieces], dim=-1)


def residual_energy(parts: Sequence[StreamingBasis]) -> float:
    """The share of the energy of all vectors seen that the bases leave out, rho_R of the paper's Proposition 3.4.1.

    ``sum_{r > R} sigma_r^2 / sum_r sigma_r^2``; zero for no vectors.
    """
    total = sum(part.energy for part in parts)
    kept = sum(float(part.singular_values.double().square().sum()) for part in parts)
    return max(0.0, 1.0 - kept / total) if total else 0.0


def _negligible(dtype: torch.dtype) -> float:
    """The relative length below which a vector counts as rounding: 2e-12 in float64, 6e-6 in float32."""
    return float(torch.finfo(dtype).eps ** 0.75)
