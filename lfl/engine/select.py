"""Choosing how the steps of a run are computed."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lfl.callback import FederatedCallback
from lfl.client.foresee import at_round_1
from lfl.client.model import ClientModel
from lfl.client.probe import probe
from lfl.client.schedule import count_calls
from lfl.client.step import Extras, StepInput
from lfl.client.work import LocalWork
from lfl.data.base import FederatedData
from lfl.engine.base import LocalEngine
from lfl.engine.graph.traced import TracedStep
from lfl.engine.paths import Path, TraceSteps, why_not_padded, why_not_recorded, why_not_vectorized
from lfl.engine.training import LocalTraining
from lfl.engine.trial import Trial, make_trial
from lfl.engine.vectorized import VectorizedEngine
from lfl.randomness import client_keys

EngineName = Literal["auto", "sequential", "vectorized"]

_COHORT_BYTES = 2**28  # parameters of one cohort, when the user gives no size
_LARGEST_COHORT = 128
_DEVICE_SHARE = 0.6  # of the free memory of a device, for what a cohort needs
_MARGIN = 0.9  # the trial is short and knows nothing of the rest of a round: prefer the simple engine where it is close
_FEWER_CALLS = 0.8  # padding is worth it where it saves a fifth of the calls


@dataclass(frozen=True)
class EngineSettings:
    """Which engine the user wants, and how it is to run.

    Args:
        name: ``auto`` is the vectorized engine where the model allows it and a short trial finds it faster.
        cohort_size: clients of a cohort; None for as many as memory allows.
        clients_per_round: about how many there are.
        trace_steps: whether steps are recorded, and compiled.
        resumed: the choice that ``auto`` made before, if a run is resumed; then nothing is timed.
    """

    name: EngineName
    cohort_size: int | None = None
    clients_per_round: int = 10
    trace_steps: TraceSteps = False
    resumed: dict[str, Any] | None = None


def build_training(
    settings: EngineSettings,
    model: ClientModel,
    data: FederatedData,
    work: LocalWork,
    callbacks: list[FederatedCallback],
    seed: int,
    ask: Callable[[Callable[[], Any]], Any] = lambda question: question(),
) -> LocalTraining:
    """Find out what the model's training step does, and choose how its steps are computed.

    Args:
        settings: what the user wants.
        model: the one model of all clients.
        data: the clients' data.
        work: local work of a round.
        callbacks: the stack.
        seed: of all draws.
        ask: answers a question whose answer differs between processes, with the same answer on all of them.

    Raises:
        NoGradientError: no parameter gets a gradient.
        ValueError: ``vectorized`` or ``trace_steps`` was asked for and the model does not allow it; names the reason.
    """
    trial = make_trial(model, data, seed)
    first = at_round_1(model)
    first.traits = probe(first, [trial.batch_of(row) for row in range(len(trial))], list(trial.keys))
    model.traits = first.traits
    _warn_of_missing_gradients(model)
    chooser = _Chooser(settings, first, data, work, callbacks, seed, trial, ask)
    # With `auto`, recording is a wish like the engine.
    named = settings.name, settings.trace_steps if settings.name != "auto" else False
    return LocalTraining(model, data, work, callbacks, seed, chooser.path(), named, trial)


@dataclass(frozen=True)
class _Chooser:
    """Chooses the first path of a run; the fields are the arguments of ``build_training``, and the trial."""

    settings: EngineSettings
    model: ClientModel
    data: FederatedData
    work: LocalWork
    callbacks: list[FederatedCallback]
    seed: int
    trial: Trial
    ask: Callable[[Callable[[], Any]], Any]

    def path(self) -> Path:
        """The path that the user asked for or, with ``auto``, the faster one of two."""
        name, resumed = self.settings.name, self.settings.resumed or {}
        chosen = (name, resumed.get("name"))
        if "sequential" in chosen or not self._can_vectorize(is_named=name == "vectorized"):
            return Path("sequential", recording=self._recording())
        size = self.settings.cohort_size or self.ask(
            lambda: min(automatic_cohort_size(self.model, self.data, self.seed), self._per_round)
        )
        vectorized = Path("vectorized", size, recording=self._recording())
        vectorized = self._with_padding(vectorized, is_allowed=resumed.get("is_padded", True))
        sequential = Path("sequential", recording=vectorized.recording)
        if "vectorized" in chosen or self.ask(lambda: self._is_faster(vectorized, sequential)):
            return vectorized
        return sequential

    @property
    def _per_round(self) -> int:
        return max(1, self.settings.clients_per_round)

    def _engine(self, path: Path, model: ClientModel | None = None) -> LocalEngine:
        return path.engine(model or self.model, self.data, self.work, self.callbacks, self.seed)

    def _recording(self) -> TraceSteps:
        """Whether steps are recorded: if that was asked for and the model allows it; warns if not.

        Raises:
            ValueError: it does not, and the user asked for an engine by name.
        """
        trace_steps = self.settings.trace_steps
        reason = why_not_recorded(self.model) if trace_steps else None
        if reason is not None and self.settings.name != "auto":
            raise ValueError(
                f"`trace_steps={str(trace_steps).lower()}` cannot record the step of "
                f"{type(self.model.module).__name__}: {reason}. Leave it out."
            )
        # A side effect has been said: it keeps clients apart, too.
        if reason is not None and self.model.traits.side_effect is None:
            rank_zero_warn(f"The step of {type(self.model.module).__name__} is not recorded: {reason}.")
        return False if reason is not None else trace_steps

    def _can_vectorize(self, is_named: bool) -> bool:
        """Whether the vectorized engine can train the model; warns if not.

        Raises:
            ValueError: it cannot, and the user asked for this engine by name.
        """
        model = self.model
        reason = why_not_vectorized(model, self.trial)
        if reason is None:
            return True
        if is_named:
            instead = ", or GroupNorm where that is BatchNorm" if model.traits.changed_buffers else ""
            raise ValueError(
                f"`engine=vectorized` cannot train {type(model.module).__name__}: {reason}. Use `engine=auto`{instead}."
            )
        rank_zero_warn(f"{type(model.module).__name__} is trained one client at a time (sequential engine): {reason}.")
        return False

    def _with_padding(self, path: Path, is_allowed: bool) -> Path:
        """Pad ragged batches where that saves calls and cannot change the loss.

        The decision depends on model, data and work, never on time: padding changes rounding, and a run must be
        repeatable.
        """
        data, engine = self.data, self._engine(path)
        is_even = int(data.client_sizes.min()) == int(data.client_sizes.max())
        path = replace(path, may_descend=is_even)
        if is_even or self.work.sampling == "replacement" or not is_allowed:
            return path
        _, sizes, steps = self._typical_clients()
        grouped, padded = 0, 0
        for rows in engine.order(torch.arange(len(sizes)), steps, sizes).split(path.cohort_size):
            grouped += count_calls(sizes[rows], steps[rows], data.batch_size)[0]
            padded += int(steps[rows].max())
        if padded > _FEWER_CALLS * grouped:
            return path
        reason = why_not_padded(self.model, self.trial)
        if reason is not None:
            rank_zero_info(f"Batches of {type(self.model.module).__name__} are not padded to one length: {reason}.")
            return path
        # Padded batches have few shapes, as even ones have: each shape is recorded, which takes as long as many steps.
        return replace(path, padded_width=min(data.batch_size, int(data.client_sizes.max())), may_descend=True)

    def _typical_clients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, sizes and local steps of as many clients as take part in a round, evenly spaced over the ids."""
        data = self.data
        count = min(self._per_round, data.num_clients)
        ids = torch.linspace(0, data.num_clients - 1, count, dtype=torch.float64).long()
        ids = ids[data.client_sizes[ids] > 0]
        sizes = data.client_sizes[ids]
        return ids, sizes, self.work.num_steps(sizes, data.batch_size)

    def _is_faster(self, vectorized: Path, sequential: Path) -> bool:
        """Whether a round is faster vectorized, estimated from timed steps and the batches of typical clients.

        A call of n clients is taken to cost ``alone + (n - 1) * each``.
        """
        _, sizes, steps = self._typical_clients()
        if not len(sizes):
            return False
        # Timed on a copy, so that nothing is left of it in the module.
        model = self.model.copy()
        batched_engine, alone_engine = self._engine(vectorized, model), self._engine(sequential, model)
        one = self._seconds(alone_engine, 1)
        alone, size = self._seconds(batched_engine, 1), min(vectorized.cohort_size, len(sizes))
        each = (self._seconds(batched_engine, size) - alone) / (size - 1) if size > 1 else 0.0
        batched = 0.0
        for rows in batched_engine.order(torch.arange(len(sizes)), steps, sizes).split(size):
            # Clients whose batches have the same size at a step are one call; padded, all clients are.
            calls, members = count_calls(sizes[rows], steps[rows], self.data.batch_size)
            calls = int(steps[rows].max()) if vectorized.padded_width else calls
            batched += alone * calls + max(each, 0.0) * (members - calls)
        return batched < _MARGIN * one * int(steps.sum())

    def _seconds(self, engine: LocalEngine, count: int) -> float:
        """Seconds of one step of ``count`` clients, the least of five."""
        batch, keys = _largest_batch(self.data, engine.model, self.seed, count)
        params = engine.model.flat_parameters().repeat(count, 1)
        best, anchor = float("inf"), params[0].clone()
        with engine.model.recording(), engine.model.training_only(engine.trained[0]):
            for _ in range(5):  # the first ones are for warming up
                start = time.perf_counter()
                features = engine.global_features(batch, keys, anchor)
                _take_step(engine, params, StepInput(batch, keys, anchor, Extras(features, {})))
                float(params[0, 0])  # wait for the device
                best = min(best, time.perf_counter() - start)
        return best


def _take_step(engine: LocalEngine, params: Tensor, input: StepInput) -> None:
    """Take a step of G clients in the form in which training will take it, without effect."""
    if engine.padded_width:
        size = next(leaf.shape[1] for leaf in tree_leaves(input.batch) if isinstance(leaf, Tensor))
        input = input._replace(weights=params.new_full((len(params), size), 1 / size))
    function = engine.step_functions[0]
    if isinstance(function, TracedStep) and engine.may_record_descents:
        function.descend(0.0, params, input)
    else:  # the update belongs to the cost of a step, too; with a rate of zero it changes nothing
        params -= 0.0 * function(params, input).gradients


def automatic_cohort_size(model: ClientModel, data: FederatedData, seed: int) -> int:
    """The number of clients whose parameters take 256 MiB, at most 128; on a CUDA device, as many as fit.

    What a client needs on the device is measured: the peak of a step of two clients less that of one.
    """
    row = max(1, model.layout.dim) * model.layout.dtype.itemsize
    device = model.parameters[0].device
    if device.type != "cuda":
        return max(1, min(_LARGEST_COHORT, _COHORT_BYTES // row))
    # The difference leaves out what a step needs however many clients there are.
    each = max(row, _peak(model, data, seed, 2) - _peak(model, data, seed, 1))
    free = torch.cuda.mem_get_info(device)[0]
    return max(1, min(_LARGEST_COHORT, int(_DEVICE_SHARE * free) // (each + 3 * row)))  # values, gradients, updates


def _peak(model: ClientModel, data: FederatedData, seed: int, count: int) -> int:
    """The most bytes that a step of ``count`` clients takes on the device."""
    device = model.parameters[0].device
    batch, keys = _largest_batch(data, model, seed, count)
    engine = VectorizedEngine(model.copy(), data, LocalWork(), [], seed, count)
    params = model.flat_parameters().repeat(count, 1)
    anchor = params[0].clone()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with engine.model.recording(), engine.model.training_only(engine.trained[0]):
        extras = Extras(engine.global_features(batch, keys, anchor), {})
        engine.compute_step(params, StepInput(batch, keys, anchor, extras))
    return int(torch.cuda.max_memory_allocated(device)) - int(before)


def _largest_batch(data: FederatedData, model: ClientModel, seed: int, count: int) -> tuple[Any, Tensor]:
    """A batch of ``count`` equal clients (the one with most examples), and their keys."""
    largest = data.client_sizes.argmax().expand(count)
    indices, sizes = data.client_indices(largest)
    device = model.parameters[0].device
    indices = indices[:, : min(data.batch_size, int(sizes[0]))].to(device)
    batch = next(iter(data.batches([(indices, indices)])))
    return model.converted(batch), client_keys(torch.arange(count, device=device), seed, "trial")


def _warn_of_missing_gradients(model: ClientModel) -> None:
    missing = model.traits.without_gradient
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        rank_zero_warn(
            f"No gradient reaches {', '.join(missing[:3])}{more} of {type(model.module).__name__}: the clients leave "
            "these parameters as they are."
        )
