"""Choosing an engine."""

import time
from typing import Any, Literal

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils._pytree import tree_map

from lfl.callbacks.base import FederatedCallback
from lfl.client import ClientModel, Extras
from lfl.data.base import FederatedData
from lfl.engine.base import LocalEngine
from lfl.engine.schedule import count_calls
from lfl.engine.sequential import SequentialEngine
from lfl.engine.vectorized import VectorizedEngine, why_not_vectorized
from lfl.engine.work import LocalWork
from lfl.randomness import client_keys

EngineName = Literal["auto", "sequential", "vectorized"]

_COHORT_BYTES = 2**28  # parameters of one cohort, when the user gives no size
_LARGEST_COHORT = 64
_MARGIN = 0.8  # the trial is short and knows nothing of the optimizer: prefer the simple engine where it is close


def build_engine(
    name: EngineName,
    model: ClientModel,
    data: FederatedData,
    work: LocalWork,
    callbacks: list[FederatedCallback],
    seed: int,
    cohort_size: int | None = None,
    clients_per_round: int = 10,
    trace_steps: bool = False,
) -> LocalEngine:
    """Probe the model and build the engine.

    ``auto`` takes the vectorized engine where the model allows it and a short trial finds it faster.

    Raises:
        ValueError: ``vectorized`` was asked for and the model cannot be vectorized; names the reason.
    """
    batch, keys = _trial_batch(data, model, seed)
    model.probe(tree_map(lambda x: x[0], batch), keys[0])
    sequential = SequentialEngine(model, data, work, callbacks, seed)
    if name == "sequential" and trace_steps:
        raise ValueError("`trace_steps=true` needs the vectorized engine: use `engine=vectorized` or `engine=auto`.")
    if name == "sequential":
        return sequential
    with model.recording():
        reason = why_not_vectorized(model, batch, keys)
    if reason is not None and name == "vectorized":
        raise ValueError(
            f"`engine=vectorized` cannot train {type(model.module).__name__}: {reason}. Use `engine=auto`."
        )
    if reason is not None:
        rank_zero_warn(f"{type(model.module).__name__} is trained one client at a time (sequential engine): {reason}.")
        return sequential
    size = cohort_size or automatic_cohort_size(model)
    vectorized = VectorizedEngine(model, data, work, callbacks, seed, size)
    if trace_steps:
        vectorized.trace_steps()
    if name == "auto" and not _is_faster(vectorized, sequential, data, seed, clients_per_round):
        return sequential
    return vectorized


def automatic_cohort_size(model: ClientModel) -> int:
    """As many clients as keep a cohort's parameters within 256 MiB, at most 64."""
    row = max(1, model.layout.dim) * model.layout.dtype.itemsize
    return max(1, min(_LARGEST_COHORT, _COHORT_BYTES // row))


def _trial_batch(data: FederatedData, model: ClientModel, seed: int, count: int = 2) -> tuple[Any, Tensor]:
    """A batch of ``count`` equal clients (the one with most examples), and their keys."""
    largest = data.client_sizes.argmax().expand(count)
    indices, sizes = data.client_indices(largest)
    device = model.parameters[0].device
    indices = indices[:, : min(data.batch_size, int(sizes[0]))].to(device)
    batch = next(iter(data.batches([(indices, indices)])))
    return model.converted(batch), client_keys(torch.arange(count, device=device), seed, "trial")


def _is_faster(
    vectorized: LocalEngine, sequential: LocalEngine, data: FederatedData, seed: int, clients_per_round: int
) -> bool:
    """Whether a round is faster vectorized, from timed gradients and the batches that typical clients would need."""
    count = min(clients_per_round, data.num_clients)
    ids = torch.linspace(0, data.num_clients - 1, count, dtype=torch.float64).long()
    ids = ids[data.client_sizes[ids] > 0]
    one = _seconds(sequential, data, seed, 1)
    alone, size = _seconds(vectorized, data, seed, 1), min(vectorized.cohort_size, count)
    each = (_seconds(vectorized, data, seed, size) - alone) / (size - 1) if size > 1 else 0.0
    sizes = data.client_sizes[ids]
    steps = vectorized.work.num_steps(sizes, data.batch_size)
    batched = 0.0
    for rows in vectorized.order(ids, steps, sizes).split(size):
        # Clients whose batches have the same size at a step are one call.
        calls, members = count_calls(sizes[rows], steps[rows], data.batch_size)
        batched += alone * calls + max(each, 0.0) * (members - calls)
    return batched < _MARGIN * one * int(steps.sum())


def _seconds(engine: LocalEngine, data: FederatedData, seed: int, count: int) -> float:
    """Seconds of one gradient for ``count`` clients, the best of three."""
    batch, keys = _trial_batch(data, engine.model, seed, count)
    params = engine.model.flat_parameters().repeat(count, 1)
    best, anchor = float("inf"), params[0].clone()
    with engine.model.recording():
        for _ in range(4):  # the first is for warming up
            start = time.perf_counter()
            features = engine.global_features(batch, keys, anchor)
            gradients, _, _ = engine.gradients(params, batch, 0, keys, anchor, Extras(features, {}))
            float(gradients[0, 0])  # wait for the device
            best = min(best, time.perf_counter() - start)
    return best
