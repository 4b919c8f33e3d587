"""A basis that follows a stream of vectors: their leading singular subspace, updated by one vector at a time.

"Federated Learning in Streaming Subspace", Algorithm 2 (SLDS). The paper takes the eigenvectors of the Gram matrix of
``[lambda P Sigma, g]`` and divides by singular values. Squaring loses the small ones, and with them the orthonormality
of P. Here ``[lambda P Sigma, g]`` itself is decomposed: M. Brand, "Fast Low-Rank Modifications of the Thin Singular
Value Decomposition", Linear Algebra and its Applications 415(1), 2006. The columns of the paper's P are our rows.
"""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lfl.subspace.base import Basis


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

    Example:
        >>> basis = StreamingBasis(2, torch.zeros(3))
        >>> for vector in ([0.0, 3.0, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, 1.0]):
        ...     basis.update(torch.tensor(vector))
        >>> basis.singular_values.tolist(), basis.rows.abs().tolist()
        ([4.0, 3.0], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    """

    def __init__(self, max_rank: int, like: Tensor) -> None:
        self.max_rank = max_rank
        self.singular_values = like.new_zeros(0)
        self._hold(like.new_zeros(0, len(like)), self.singular_values)

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

    def state_dict(self) -> dict[str, Any]:
        """Rows and singular values, on the CPU."""
        return {"rows": self.rows.cpu(), "singular_values": self.singular_values.cpu()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        self._hold(state["rows"].to(self.rows), state["singular_values"].to(self.rows))

    def _hold(self, rows: Tensor, singular_values: Tensor) -> None:
        self.rows = rows
        self.singular_values = singular_values
        self.rank, self.dim = rows.shape

    def _leading(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """The first R left singular vectors [m, r] and singular values [r] of a small matrix."""
        left, values, _ = torch.linalg.svd(matrix.double().cpu(), full_matrices=False)
        return left[:, : self.max_rank].to(matrix), values[: self.max_rank].to(matrix)


def _negligible(dtype: torch.dtype) -> float:
    """The relative length below which a vector counts as rounding: 2e-12 in float64, 6e-6 in float32."""
    return float(torch.finfo(dtype).eps ** 0.75)
