"""Evaluation of clients' models on their own test examples: many clients in one pass, where that gives the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.fabric.utilities.rank_zero import rank_zero_info
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_map

from lfl.aggregation import Server
from lfl.client.attributes import attributes_of, comparable, flags_of
from lfl.client.evaluation import Evaluator, step_arguments
from lfl.client.evaluation_ops import EvaluationOps
from lfl.client.model import ClientModel
from lfl.client.probe import watched_trainer
from lfl.client.step import StepModule
from lfl.client.surroundings import Surroundings
from lfl.client.value_reads import out_of_reach
from lfl.data.base import FederatedData
from lfl.data.nests import without_riders
from lfl.engine.graph.separable import why_not_a_mean
from lfl.engine.paths import brief
from lfl.generators import HostGenerators
from lfl.processes.group import Processes

Way = Literal["padded", "equal", "alone"]
"""The clients that share a pass: those of similar sizes, of equal sizes only, or none."""

_ALONE = 8  # a client that fills more than such a share of a pass gains little from sharing it
# Another pass costs about as much as so many examples of a small network: before that, padding is cheaper.
_WORTH_A_PASS = 128
_TRIED = 3  # clients that are evaluated in both ways
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_LOW_PRECISION = 0.05
_HOOKS = [
    f"on_validation_{place}" for place in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
]


class ClientEvaluator:
    """Runs ``validation_step`` of clients' models on their own test examples, of many clients in one vmap call.

    Before the first such pass some clients are evaluated in both ways, and the step is looked at: clients are evaluated
    one at a time, with one line that says why, where the module has hooks of validation, keeps something of its step,
    logs Metric objects, draws random numbers, does not run under vmap, or gives other numbers there. Clients of
    different sizes share a pass if the step's operations show that it logs means over examples; else those of equal
    sizes do. Who shares a pass with whom follows from the clients asked for alone.

    Args:
        model: the model; copies of it are evaluated.
        data: the clients' data.
        server: has the buffers of clients that have none of their own, and the counters.
        processes: of which this one evaluates its clients by itself.
        seed: of what steps and hooks draw from global generators.

    Attributes:
        way: how clients are evaluated; None before that is known.
    """

    def __init__(
        self, model: ClientModel, data: FederatedData, server: Server, processes: Processes, seed: int
    ) -> None:
        self._model, self._data, self._server, self._processes, self._seed = model, data, server, processes, seed
        # A pass takes no more memory than a batch of the server's evaluation.
        self._batch_size = int(getattr(data, "eval_batch_size", 0)) or 1024
        self._largest_tried = 0  # examples of the largest client that was evaluated in both ways
        self._tried_with: Any = None  # what the module held then
        self._reads: set[str] = set()  # what its step reads of the trainer, by which it may become another
        self.way: Way | None = None

    def __call__(self, ids: Tensor, params: Tensor, buffers: Tensor) -> list[dict[str, float]]:
        """Metrics of each client; none for a client without test examples.

        Args:
            ids: the clients [C].
            params: their models [C, D], or one for all [D].
            buffers: of each [C, B].
        """
        positions, sizes = self._data.client_test_indices(ids)
        model = self._model.copy()  # what steps and hooks keep is of the clients' models, not of the server's
        model.load(params if params.dim() == 1 else params[0], self._server.buffers, self._server.counters)
        clients = _Clients(model, params, buffers, positions, sizes.tolist())
        shared = [row for row, size in enumerate(clients.sizes) if 0 < size <= self._batch_size // _ALONE]
        largest = max((clients.sizes[row] for row in shared), default=0)
        # Again for larger clients than before, and for a module that holds something else: its step may be another one.
        if len(shared) > 1 and self.way != "alone":
            held = _held(self._model.module)
            if largest > self._largest_tried or self._reads or held != self._tried_with:
                self.way, self._largest_tried = self._choose(clients, shared), max(largest, self._largest_tried)
                self._tried_with = held
        found: dict[int, dict[str, float]] = {row: {} for row, size in enumerate(clients.sizes) if not size}
        for rows in self._passes(shared, clients.sizes) if self.way in ("padded", "equal") else ():
            try:
                found |= zip(rows, self._together(clients, rows), strict=True)
            except Exception as error:  # whatever a user's module raises: what is wrong with it, it will say alone, too
                self.way = self._leave(f"some could not be evaluated together ({brief(error)})")
                break
        evaluator = Evaluator(model, self._processes, self._seed)
        for row in range(len(ids)):
            if row not in found:
                found[row] = self._alone(evaluator, clients, row)
        return [found[row] for row in range(len(ids))]

    # -- one client, and many ---------------------------------------------------------------------------------------

    def _alone(self, evaluator: Evaluator, clients: _Clients, row: int, size: int | None = None) -> dict[str, float]:
        """Evaluate one client, on its first ``size`` examples or on all."""
        clients.model.load(clients.params_of(row), clients.buffers[row], self._server.counters)
        positions = clients.positions[row, : clients.sizes[row] if size is None else size]
        # `gather_test` reads for a cohort [C, b], here of one client; the module's step knows no cohorts.
        batches = (self._data.gather_test(chunk[None]) for chunk in positions.split(self._batch_size))
        return evaluator.run_alone("validate", (tree_map(lambda x: x[0], batch) for batch in batches))

    @torch.no_grad()
    def _together(
        self, clients: _Clients, rows: list[int], size: int | None = None, is_padded: bool = False
    ) -> list[dict[str, float]]:
        """Evaluate some clients in one pass, on their first ``size`` examples or on all; those of one size as such."""
        sizes = [clients.sizes[row] if size is None else size for row in rows]
        model, width = clients.model, max(sizes)
        positions = clients.positions[rows, :width]
        batch = without_riders(self._converted(model, self._data.gather_test(positions)))
        params = clients.params if clients.params.dim() == 1 else _picked(clients.params, rows)
        buffers = _picked(clients.buffers, rows)
        lengths = torch.tensor(sizes, device=self._processes.device)
        evaluate = _in_evaluation(model)
        in_dims = (None if params.dim() == 1 else 0, 0, 0)
        with EvaluationOps(), model.recording():
            if min(sizes) == width and not is_padded:
                values = vmap(evaluate, in_dims, randomness="error")(params, buffers, batch)
            else:
                values = vmap(partial(_of_examples, evaluate), in_dims, randomness="error")(params, buffers, batch)
                is_used = torch.arange(width, device=lengths.device) < lengths[:, None]
                values = {name: _mean(each, is_used, lengths) for name, each in values.items()}
            names = list(model.recorder.values)  # in the order in which they were logged
        # As one client's batch is averaged, times its size and divided by it.
        table = [(values[name].double() * lengths / lengths).tolist() for name in names]
        return [dict(zip(names, column, strict=True)) for column in zip(*table, strict=True)] or [{} for _ in rows]

    def _passes(self, rows: list[int], sizes: list[int]) -> Iterator[list[int]]:
        """Clients that share a pass: neighbours by size, as many as the limit of examples allows; two at least."""
        ordered = sorted(rows, key=lambda row: (-sizes[row], row))
        current: list[int] = []
        for row in [*ordered, None]:
            widest = sizes[current[0]] if current else 0
            is_full = (len(current) + 1) * widest > self._batch_size
            if current and (row is None or is_full or self._is_too_small(sizes[row], widest, len(current))):
                if len(current) > 1:
                    yield current
                current = []
            if row is not None:
                current.append(row)

    def _is_too_small(self, size: int, widest: int, count: int) -> bool:
        """Whether a client is too small for a pass of ``count`` larger ones, which it would be padded to."""
        if self.way == "equal":
            return size != widest
        return 4 * size < 3 * widest and count * widest >= _WORTH_A_PASS

    # -- whether clients may share a pass ---------------------------------------------------------------------------

    def _choose(self, clients: _Clients, rows: list[int]) -> Way:
        """Find out how clients can be evaluated; says so where it is one at a time."""
        ordered = sorted(rows, key=lambda row: (-clients.sizes[row], row))
        tried = [ordered[place] for place in sorted({0, len(ordered) // 2, len(ordered) - 1})][:_TRIED]
        reason = self._why_alone(clients, tried) or self._why_not_the_same(clients, tried, is_padded=False)
        if reason is not None:
            return self._leave(reason)
        can_pad = self._logs_means(clients, tried[0]) and self._why_not_the_same(clients, tried, is_padded=True) is None
        return "padded" if can_pad else "equal"

    def _leave(self, reason: str) -> Way:
        """Say why clients are evaluated one at a time."""
        rank_zero_info(f"The clients of {type(self._model.module).__name__} are evaluated one at a time: {reason}.")
        return "alone"

    def _logs_means(self, clients: _Clients, row: int) -> bool:
        """Whether a step's operations show that all it logs are means over the examples of its batch."""
        model = self._model.copy()
        params, buffers = clients.params_of(row), clients.buffers[row]
        batch = self._data.gather_test(clients.positions[row, : clients.sizes[row]][None])
        batch = self._converted(model, tree_map(lambda x: x[0], batch))

        def step(params: Tensor, batch: Any) -> dict[str, Tensor]:
            return _in_evaluation(model)(params, buffers, batch)

        with model.recording():
            return why_not_a_mean(step, params, without_riders(batch)) is None

    def _why_alone(self, clients: _Clients, rows: list[int]) -> str | None:
        """Find out what a step does besides logging numbers of its batch, as far as some show; None for nothing."""
        module = self._model.module
        hook = next((name for name in _HOOKS if is_overridden(name, module)), None)
        if hook is not None:
            return f"its hook `{hook}` is run for each"
        model = self._model.copy()
        module = model.module.eval()
        generators, surroundings = HostGenerators(*module.modules()), Surroundings(module)
        watched = watched_trainer(module, self._reads)
        with surroundings.kept(), generators.kept(), model.recording(), watched, torch.no_grad():
            for row in rows:
                model.load(clients.params_of(row), clients.buffers[row], self._server.counters)
                batch = self._data.gather_test(clients.positions[row, : clients.sizes[row]][None])
                batch = self._converted(model, tree_map(lambda x: x[0], batch))
                held, outside, drawn = _held(module), surroundings.state(), generators.state()
                model.recorder.start()
                with model.autocast():
                    module.validation_step(*step_arguments(module.validation_step, batch, 0, None))
                if model.recorder.metrics:
                    return f"its validation step logs the Metric object {next(iter(model.recorder.metrics))!r}"
                if moved := generators.moved_since(drawn):
                    return f"its validation step draws from {moved[0]}"
                if (now := _held(module)) != held:
                    changed = [name for name in now if name not in held or held[name] != now[name]]
                    return f"its validation step changes the module's attribute {(changed or ['?'])[0]!r}"
                if surroundings.state() != outside:
                    return "its validation step changes something outside of the module"
        return None

    def _why_not_the_same(self, clients: _Clients, rows: list[int], is_padded: bool) -> str | None:
        """Evaluate some clients in both ways, and compare; None if the numbers are equal to rounding."""
        size = None if is_padded else clients.sizes[rows[-1]]  # that of the smallest
        several = _Clients(clients.model, clients.params.expand(len(clients.sizes), -1), *clients[2:])
        try:
            found = self._together(several, rows, size, is_padded)
        except Exception as error:  # whatever a user's module raises under vmap is the reason
            return f"its validation step does not run under vmap ({brief(error)})"
        alone = several._replace(model=self._model.copy())
        evaluator = Evaluator(alone.model, self._processes, self._seed)
        for row, together in zip(rows, found, strict=True):
            expected = self._alone(evaluator, alone, row, size)
            if together.keys() != expected.keys():
                return f"its validation step logs {sorted(together)} under vmap instead of {sorted(expected)}"
            for name, value in expected.items():
                if not _is_close(together[name], value, self._tolerance):
                    return f"under vmap {name!r} is {together[name]:.6g} instead of {value:.6g}"
        return None

    def _converted(self, model: ClientModel, batch: Any) -> Any:
        return model.converted(move_data_to_device(batch, self._processes.device))

    @property
    def _tolerance(self) -> float:
        one = torch.ones(1, 1, device=self._processes.device)
        with self._model.autocast():
            is_low = (one @ one).dtype.itemsize < 4
        return _LOW_PRECISION if is_low else _TOLERANCE.get(self._model.layout.dtype, _LOW_PRECISION)


class _Clients(NamedTuple):
    """Clients to evaluate: a model to compute with, and their parameters, buffers, and test examples."""

    model: ClientModel
    params: Tensor
    buffers: Tensor
    positions: Tensor
    sizes: list[int]

    def params_of(self, row: int) -> Tensor:
        """The parameters [D] of one client."""
        return self.params if self.params.dim() == 1 else self.params[row]


Step = Callable[[Tensor, Tensor, Any], dict[str, Tensor]]
"""From parameters [D], buffers [B] and a batch of one client to the values that its validation step logs."""


def _in_evaluation(model: ClientModel) -> Step:
    """The validation step of a model, which is put into evaluation mode, as a function; to be called in ``recording``.

    Random operations have no key: under vmap they raise.
    """
    module = model.module.eval()

    def run(batch: Any) -> Tensor:
        with model.autocast():
            module.validation_step(*step_arguments(module.validation_step, batch, 0, None))
        return torch.empty(0)

    wrapper = StepModule(module, run)

    def evaluate(params: Tensor, buffers: Tensor, batch: Any) -> dict[str, Tensor]:
        views = {**model.layout.views(params), **model.buffer_layout.views(buffers)}
        model.recorder.start()
        with out_of_reach():
            model.call(wrapper, views, (batch,))
        return dict(model.recorder.values)

    return evaluate


def _of_examples(evaluate: Step, params: Tensor, buffers: Tensor, batch: Any) -> dict[str, Tensor]:
    """The values [b] that a step logs of each example of a client alone."""

    def of_one(example: Any) -> dict[str, Tensor]:
        return evaluate(params, buffers, tree_map(lambda x: x[None], example))

    values: dict[str, Tensor] = vmap(of_one, randomness="error")(batch)
    return values


def _mean(values: Tensor, is_used: Tensor, lengths: Tensor) -> Tensor:
    """Means over the examples of each client [G, b] that are its own: others fill its places, and may be nan."""
    means = values.where(is_used, 0).sum(dim=1, dtype=torch.float64) / lengths
    return means.to(values.dtype) if values.is_floating_point() else means


def _picked(tensor: Tensor, rows: list[int]) -> Tensor:
    """Some rows of a tensor; a view where that is possible, as parameters may be far more than examples."""
    if rows == list(range(rows[0], rows[-1] + 1)):
        return tensor[rows[0] : rows[-1] + 1]
    return tensor.index_select(0, torch.tensor(rows, device=tensor.device))


def _held(module: nn.Module) -> dict[str, Any]:
    return {name: comparable(value) for name, value in attributes_of(module)} | flags_of(module)


def _is_close(one: float, other: float, tolerance: float) -> bool:
    return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
