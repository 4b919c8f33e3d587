"""Choosing an engine."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils._pytree import tree_map

from lfl.callback import FederatedCallback
from lfl.client.model import ClientModel
from lfl.client.schedule import count_calls
from lfl.client.step import Extras, StepInput
from lfl.client.work import LocalWork
from lfl.data.base import FederatedData
from lfl.engine.base import LocalEngine
from lfl.engine.sequential import SequentialEngine
from lfl.engine.vectorized import VectorizedEngine, is_mean_over_examples, why_not_vectorized
from lfl.randomness import client_keys

EngineName = Literal["auto", "sequential", "vectorized"]
TraceSteps = bool | Literal["compile"]

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
        resumed: the engine that ``auto`` took before, if a run is resumed; no trial is made.
    """

    name: EngineName
    cohort_size: int | None = None
    clients_per_round: int = 10
    trace_steps: TraceSteps = False
    resumed: str | None = None


def build_engine(
    settings: EngineSettings,
    model: ClientModel,
    data: FederatedData,
    work: LocalWork,
    callbacks: list[FederatedCallback],
    seed: int,
    ask: Callable[[Callable[[], Any]], Any] = lambda question: question(),
) -> LocalEngine:
    """Probe the model and build the engine.

    Args:
        settings: what the user wants.
        model: the one model of all clients.
        data: the clients' data.
        work: local work of a round.
        callbacks: the stack.
        seed: of all draws.
        ask: answers a question whose answer differs between processes, with the same answer on all of them.

    Raises:
        ValueError: ``vectorized`` or ``trace_steps`` was asked for and the model does not allow it; names the reason.
    """
    name, per_round, chosen = settings.name, settings.clients_per_round, (settings.name, settings.resumed)
    batch, keys = _trial_batch(data, model, seed)
    model.probe(tree_map(lambda x: x[0], batch), keys[0])
    sequential = SequentialEngine(model, data, work, callbacks, seed)
    _trace(sequential, settings.trace_steps, is_named=name == "sequential")
    if "sequential" in chosen or not _can_vectorize(model, batch, keys, is_named=name == "vectorized"):
        return sequential
    size = settings.cohort_size or ask(lambda: min(automatic_cohort_size(model, data, seed), max(1, per_round)))
    vectorized = VectorizedEngine(model, data, work, callbacks, seed, size)
    _decide_padding(vectorized, data, batch, keys, per_round)
    _trace(vectorized, settings.trace_steps, is_named=False)
    if "vectorized" in chosen:
        return vectorized
    return vectorized if ask(lambda: _is_faster(vectorized, sequential, data, seed, per_round)) else sequential


def _trace(engine: LocalEngine, trace_steps: TraceSteps, is_named: bool) -> None:
    """Let an engine record its steps, if that was asked for and the model allows it.

    Raises:
        ValueError: it does not, and the user asked for this engine by name.
    """
    untraceable = _why_not_traced(engine.model)
    if trace_steps and untraceable is None:
        engine.trace_steps(compile=trace_steps == "compile")
    elif trace_steps and is_named:
        raise ValueError(
            f"`trace_steps={str(trace_steps).lower()}` cannot record the step of {type(engine.model.module).__name__}: "
            f"{untraceable}. Leave it out."
        )


def _can_vectorize(model: ClientModel, batch: Any, keys: Tensor, is_named: bool) -> bool:
    """Whether the vectorized engine can train the model; warns if not.

    Raises:
        ValueError: it cannot, and the user asked for this engine by name.
    """
    with model.recording():
        reason = why_not_vectorized(model, batch, keys)
    if reason is None:
        return True
    if is_named:
        instead = ", or GroupNorm where that is BatchNorm" if model.changed_buffers else ""
        raise ValueError(
            f"`engine=vectorized` cannot train {type(model.module).__name__}: {reason}. Use `engine=auto`{instead}."
        )
    rank_zero_warn(f"{type(model.module).__name__} is trained one client at a time (sequential engine): {reason}.")
    return False


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
    batch, keys = _trial_batch(data, model, seed, count)
    engine = VectorizedEngine(model, data, LocalWork(), [], seed, count)
    params = model.flat_parameters().repeat(count, 1)
    anchor = params[0].clone()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with model.recording():
        extras = Extras(engine.global_features(batch, keys, anchor), {})
        engine.compute_step(params, StepInput(batch, keys, anchor, extras))
    return int(torch.cuda.max_memory_allocated(device)) - int(before)


def _why_not_traced(model: ClientModel) -> str | None:
    """What a step does besides computing results from its arguments; None if nothing that the probe has seen."""
    if model.changed_buffers:
        return f"it changes the buffer {model.changed_buffers[0]!r}"
    if model.uses_global_generator:
        return "it draws from torch's global random generator"
    if model.logged_metrics:
        return f"it logs the Metric object {model.logged_metrics[0]!r}"
    return None


def _decide_padding(engine: VectorizedEngine, data: FederatedData, batch: Any, keys: Tensor, per_round: int) -> None:
    """Pad ragged batches where that saves calls and cannot change the loss.

    The decision depends on model, data and work, never on time: padding changes rounding, and a run must be repeatable.
    """
    ids, sizes, steps = _typical_clients(engine, data, per_round)
    is_even = int(data.client_sizes.min()) == int(data.client_sizes.max())
    engine.may_descend = is_even
    if is_even or engine.work.sampling == "replacement" or not len(ids):
        return
    grouped, padded = 0, 0
    for rows in engine.order(ids, steps, sizes).split(engine.cohort_size):
        grouped += count_calls(sizes[rows], steps[rows], data.batch_size)[0]
        padded += int(steps[rows].max())
    if padded > _FEWER_CALLS * grouped:
        return
    with engine.model.recording():
        separable = is_mean_over_examples(engine.model, batch, keys)
    engine.model.reset_metrics()
    # Padded batches have few shapes, as even ones have: each shape is recorded, which takes as long as many steps.
    if separable:
        engine.padded_width = min(data.batch_size, int(data.client_sizes.max()))
        engine.may_descend = True


def _typical_clients(engine: LocalEngine, data: FederatedData, per_round: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, sizes and local steps of as many clients as take part in a round, evenly spaced over the ids."""
    count = min(per_round, data.num_clients)
    ids = torch.linspace(0, data.num_clients - 1, count, dtype=torch.float64).long()
    ids = ids[data.client_sizes[ids] > 0]
    sizes = data.client_sizes[ids]
    return ids, sizes, engine.work.num_steps(sizes, data.batch_size)


def _trial_batch(data: FederatedData, model: ClientModel, seed: int, count: int = 2) -> tuple[Any, Tensor]:
    """A batch of ``count`` equal clients (the one with most examples), and their keys."""
    largest = data.client_sizes.argmax().expand(count)
    indices, sizes = data.client_indices(largest)
    device = model.parameters[0].device
    indices = indices[:, : min(data.batch_size, int(sizes[0]))].to(device)
    batch = next(iter(data.batches([(indices, indices)])))
    return model.converted(batch), client_keys(torch.arange(count, device=device), seed, "trial")


def _is_faster(
    vectorized: VectorizedEngine, sequential: LocalEngine, data: FederatedData, seed: int, clients_per_round: int
) -> bool:
    """Whether a round is faster vectorized, estimated from timed steps and the batches of typical clients.

    A call of n clients is taken to cost ``alone + (n - 1) * each``.
    """
    ids, sizes, steps = _typical_clients(vectorized, data, clients_per_round)
    if not len(ids):
        return False
    one = _seconds(sequential, data, seed, 1)
    alone, size = _seconds(vectorized, data, seed, 1), min(vectorized.cohort_size, len(ids))
    each = (_seconds(vectorized, data, seed, size) - alone) / (size - 1) if size > 1 else 0.0
    batched = 0.0
    for rows in vectorized.order(ids, steps, sizes).split(size):
        # Clients whose batches have the same size at a step are one call; padded, all clients are.
        calls, members = count_calls(sizes[rows], steps[rows], data.batch_size)
        calls = int(steps[rows].max()) if vectorized.padded_width else calls
        batched += alone * calls + max(each, 0.0) * (members - calls)
    return batched < _MARGIN * one * int(steps.sum())


def _seconds(engine: LocalEngine, data: FederatedData, seed: int, count: int) -> float:
    """Seconds of one step of ``count`` clients, the least of five."""
    batch, keys = _trial_batch(data, engine.model, seed, count)
    params = engine.model.flat_parameters().repeat(count, 1)
    best, anchor = float("inf"), params[0].clone()
    with engine.model.recording():
        for _ in range(5):  # the first ones are for warming up
            start = time.perf_counter()
            features = engine.global_features(batch, keys, anchor)
            engine.try_step(params, StepInput(batch, keys, anchor, Extras(features, {})))
            float(params[0, 0])  # wait for the device
            best = min(best, time.perf_counter() - start)
    return best
