"""FetchSGD: count sketches of the updates, with momentum and error feedback in the sketch, at the server.

D. Rothchild, A. Panda, E. Ullah, N. Ivkin, I. Stoica, V. Braverman, J. Gonzalez, R. Arora, "FetchSGD:
Communication-Efficient Federated Learning with Sketching", ICML 2020, https://arxiv.org/abs/2007.07682, Algorithm 1.
"""

import math
from typing import Any, Literal

import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_choice, check_number
from lfl.callback import FederatedCallback, changes_update, overrides
from lfl.callbacks.topk import check_entries, count_entries, keep_largest
from lfl.client.layout import ParameterLayout
from lfl.comm import Payload
from lfl.federation import Federation
from lfl.randomness import client_keys, random_bits
from lfl.round import Cohort, Round


class FetchSGD(FederatedCallback):
    """Clients send count sketches ``S(delta_i)``, tables [r, c]; the server moves the k entries that stand out of them.

    ``S_u <- rho S_u + sum_i w_i S(delta_i)``, ``S_e <- S_e + S_u``, ``d = top-k of the estimates in S_e``,
    ``x+ = x + server_lr d``; then d is taken out of S_e. Each row of a table adds every entry, with a random sign, to
    one of c buckets; an entry is estimated by the median over the rows of its buckets, with its signs. Both are drawn
    from the seed once, and never sent. Of estimates of equal magnitude those with the lowest index are moved.

    Linear: tables are averaged, and decoded once. One row's estimate is unbiased, the k largest are not; error feedback
    is the server's, in the table. The paper sketches one gradient a round, ``local_steps: 1``; updates contain the
    learning rate, so that its eta is 1 here, and a decay of the rate reaches S_u with the rounds.

    State: S_u and S_e [r, c] at the server, none of clients. Up: r c floats. Down: k values and k indices of
    ceil(log2 D) bits for each round since the client last took part, at most the whole model, if the server's
    optimizer is plain SGD and nobody else changes its step.

    Args:
        rows: r; odd, so that a median is one of them; 5 in the authors' code.
        columns: c; the authors have 500,000 for 6.5 million parameters.
        k: number of entries that the server moves: an int is the number, a float in (0, 1] a share (rounded up).
        momentum: rho.
        removal: ``zero`` empties the cells of S_e that d fell into, as the authors' code does; ``subtract`` takes S(d)
            away, as the paper's algorithm does, which diverges where the table is small.
        mask_momentum: whether the same cells of S_u are emptied, too.
    """

    is_unique = True
    whole_model = True

    def __init__(
        self,
        rows: PositiveInt = 5,
        columns: PositiveInt = 10000,
        k: int | float = 0.01,
        momentum: float = 0.9,
        removal: Literal["zero", "subtract"] = "zero",
        mask_momentum: bool = False,
    ) -> None:
        check_number("FetchSGD", "rows", rows, least=1, whole=True)
        check_number("FetchSGD", "columns", columns, least=1, whole=True)
        check_number("FetchSGD", "momentum", momentum, least=0, below=1)
        check_choice("FetchSGD", "removal", removal, ("zero", "subtract"))
        if int(rows) % 2 == 0:
            raise ValueError(f"`rows={rows}` of FetchSGD must be odd: an estimate is the median of the rows.")
        self.rows = rows
        self.columns = columns
        self.k = check_entries(k)
        self.momentum = momentum
        self.removal = removal
        self.mask_momentum = mask_momentum
        self.momentum_table = torch.empty(0)
        self.error_table = torch.empty(0)

    @override
    def check(self, layout: ParameterLayout) -> None:
        count_entries(self.k, torch.zeros(1, dtype=torch.int64), layout.dim)

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        owner = next((type(c).__name__ for c in stack if overrides(c, "coordinates")), None)
        if owner is not None:
            raise ValueError(f"FetchSGD sketches parameters, but {owner} lets clients send coordinates: use one.")
        before = stack[: stack.index(self)]
        lossy = next((type(c).__name__ for c in before if overrides(c, "encode") and not c.linear), None)
        if lossy is not None:
            raise ValueError(
                f"{lossy} stands before FetchSGD, whose tables could then not be added up: put {lossy} behind it, "
                "where it compresses tables, or leave it out."
            )
        self._is_alone = not any(changes_update(c) for c in stack)

    @override
    def on_run_start(self, federation: Federation) -> None:
        if federation.aggregator.decoded:
            name = type(federation.aggregator).__name__
            raise ValueError(f"FetchSGD decodes the mean of tables, but {name} needs updates: use a mean.")
        self._server = federation.server
        dim = federation.layout.dim
        self._count = int(count_entries(self.k, torch.zeros(1, dtype=torch.int64), dim))
        self.sketch = CountSketch.draw(int(self.rows), int(self.columns), dim, federation.seed, federation.device)
        self.momentum_table = self._server.vector.new_zeros(int(self.rows), int(self.columns))
        self.error_table = torch.zeros_like(self.momentum_table)

    @override
    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        if payload.values.shape[1] != self.sketch.dim:
            raise ValueError(
                f"FetchSGD sketches D={self.sketch.dim} parameters, but the codecs before it leave "
                f"{payload.values.shape[1]} numbers of an update: put them behind it."
            )
        return Payload.dense(self.sketch.of(payload.values).flatten(1))

    @override
    def decode(self, round: Round, values: Tensor) -> Tensor:
        # Once a round, of the mean table.
        self.momentum_table = self.momentum * self.momentum_table + values.view_as(self.momentum_table)
        error = self.error_table + self.momentum_table
        found = keep_largest(self.sketch.estimate(error)[None], self._count)
        if self.removal == "subtract":
            self.error_table = error - self.sketch.of(found)[0]
        cells = self.sketch.cells(found[0] != 0) if self.removal == "zero" or self.mask_momentum else None
        if cells is not None and self.removal == "zero":
            self.error_table = error.masked_fill(cells, 0)
        if cells is not None and self.mask_momentum:
            self.momentum_table = self.momentum_table.masked_fill(cells, 0)
        return found[0]

    @override
    def on_server_step(self, round: Round) -> None:
        if self._is_alone and self._server.is_plain_sgd and round.step_bits is None:
            entry_bits = self._server.vector.element_size() * 8 + math.ceil(math.log2(self.sketch.dim))
            round.step_bits = self._count * entry_bits if round.update is not None else 0

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"momentum": self.momentum_table.cpu(), "error": self.error_table.cpu()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.momentum_table = state_dict["momentum"].to(self.momentum_table)
        self.error_table = state_dict["error"].to(self.error_table)


class CountSketch:
    """A linear map of vectors [D] to tables [r, c], from which single entries can be estimated.

    M. Charikar, K. Chen, M. Farach-Colton, "Finding frequent items in data streams", ICALP 2002.

    Args:
        buckets: the column of every entry in every row [r, D] (int32).
        signs: its sign there [r, D] (int8), +1 or -1.
        columns: number of columns (c).
    """

    def __init__(self, buckets: Tensor, signs: Tensor, columns: int) -> None:
        self.buckets = buckets
        self.signs = signs
        self.columns = columns

    @classmethod
    def draw(cls, rows: int, columns: int, dim: int, seed: int, device: torch.device) -> "CountSketch":
        """Draw buckets and signs from ``seed``."""
        # Row by row: a row of 64-bit draws is much larger than what is kept of it.
        buckets = torch.empty(rows, dim, dtype=torch.int32, device=device)
        signs = torch.empty(rows, dim, dtype=torch.int8, device=device)
        for row, key in enumerate(client_keys(torch.arange(rows, device=device), seed, "fetchsgd")):
            bits = random_bits(key, dim)
            buckets[row] = (bits >> 1) % columns
            signs[row] = 1 - 2 * (bits & 1)
        return cls(buckets, signs, columns)

    @property
    def dim(self) -> int:
        """Number of entries (D)."""
        return self.buckets.shape[1]

    def of(self, vectors: Tensor) -> Tensor:
        """The tables [C, r, c] of vectors [C, D]."""
        tables = vectors.new_zeros(len(vectors), len(self.buckets), self.columns)
        # Vector by vector: on a CPU torch adds up one dimension a hundred times as fast as along one of two.
        for table, vector in zip(tables, vectors, strict=True):
            for row, buckets, signs in zip(table, self.buckets, self.signs, strict=True):
                row.index_add_(0, buckets, vector * signs)
        return tables

    def estimate(self, table: Tensor) -> Tensor:
        """The medians [D] over the rows of what a table [r, c] has of every entry."""
        rows = zip(table, self.buckets, self.signs, strict=True)
        return _median([row.index_select(0, buckets) * signs for row, buckets, signs in rows])

    def cells(self, mask: Tensor) -> Tensor:
        """The cells [r, c] (bool) that entries where ``mask`` [D] is true fall into."""
        cells = torch.zeros(len(self.buckets), self.columns, dtype=torch.bool, device=mask.device)
        places = mask.nonzero().squeeze(1)
        for row, buckets in zip(cells, self.buckets, strict=True):
            row[buckets[places].long()] = True
        return cells


def _median(rows: list[Tensor]) -> Tensor:
    """The medians [D] of an odd number of rows [D], in a sixth of the time of ``torch.median``; uses their memory."""
    middle = len(rows) // 2
    for count in range(len(rows) - 1, middle - 1, -1):  # the largest of the first ones goes to their end
        for index in range(count):
            smaller, larger = rows[index], rows[index + 1]
            rows[index] = torch.minimum(smaller, larger)
            torch.maximum(smaller, larger, out=larger)
    return rows[middle]
