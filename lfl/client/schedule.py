"""The examples that each client of a cohort sees at each local step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lfl.randomness import fold, random_bits

_LAST = torch.iinfo(torch.int64).max
_AT_A_TIME = 2**20  # random numbers drawn together


@dataclass(frozen=True)
class BatchPlan:
    """The examples that some clients see at one step: as many for each of them, or padded to as many.

    Attributes:
        step: the local step.
        active: clients at work in this step.
        rows: the clients, as rows of the cohort.
        indices: positions in the training data [G, b].
        keys: keys of the examples' augmentation [G, b], if there is any.
        sizes: how many examples of each client count (float64, on the CPU): one number, or [G].
        weights: of the examples in their client's mean [G, b], zero for padding; None where all count alike.
        draw: which of the step's independent batches this is, from 0.
    """

    step: int
    active: int
    rows: slice | Tensor
    indices: Tensor
    keys: Tensor | None
    sizes: float | np.ndarray
    weights: Tensor | None = None
    draw: int = 0


@dataclass(frozen=True)
class Padding:
    """The way in which batches are padded, so that few shapes occur.

    Attributes:
        width: examples of every batch.
        rows: the number of clients of a batch is a multiple of this, or the whole cohort; those beyond the active ones
            have no weight.
        dtype: of the weights.
    """

    width: int
    rows: int
    dtype: torch.dtype


class LocalSchedule:
    """Walks C clients through their data: shuffled epochs, last partial batches kept, exactly as one at a time.

    Every epoch of a client is a permutation drawn from its key and the number of the epoch. Clients whose batches at a
    step have the same size form one batch ``[G, b, ...]``; nothing is padded, unless ``padding`` says so.

    Args:
        indices: positions of each client's examples [C, n_max], padded.
        sizes: how many there are [C] (CPU).
        num_steps: local steps [C] (CPU), descending.
        batch_size: b.
        shuffle_keys: one key per client [C], on the device of ``indices``.
        augment_keys: likewise; None where nothing is augmented.
        shuffle: whether epochs are shuffled; else in stored order.
        padding: how to pad all batches of a step to one; None to leave them apart.
    """

    def __init__(
        self,
        indices: Tensor,
        sizes: Tensor,
        num_steps: Tensor,
        batch_size: int,
        shuffle_keys: Tensor,
        augment_keys: Tensor | None,
        shuffle: bool = True,
        padding: Padding | None = None,
    ) -> None:
        self._padding = padding
        self._batch_size = batch_size
        self._epoch, self._batch, self._size = _plan(sizes, num_steps, batch_size)
        # Clients stand in descending order of steps, so that those at work at a step [S, C] are always the first.
        working = num_steps.numpy() > np.arange(len(self._size))[:, None]
        self._active = working.sum(axis=1)
        # Where each batch begins in a client's row of `_order`, which holds one epoch after another.
        self._first = self._epoch * indices.shape[1] + self._batch * batch_size
        self._augment_keys = augment_keys
        self._order = _shuffled(indices, sizes, int(self._epoch[working].max()) + 1, shuffle_keys if shuffle else None)
        # All clients at work are at the same place of their rows, with batches of the same size: views will do.
        places = np.stack([self._first, self._size])
        self._is_even = ((places == places[..., :1]) | ~working).all(axis=(0, 2)).tolist()

    def __iter__(self) -> Iterator[BatchPlan]:
        if self._padding is not None:
            yield from self._padded(self._padding)
            return
        for step, active in enumerate(self._active.tolist()):
            if self._is_even[step]:
                yield self._plan_of(step, active, slice(0, active), int(self._size[step, 0]))
            else:
                sizes = self._size[step, :active]
                for size in np.unique(sizes)[::-1].tolist():
                    yield self._plan_of(step, active, _as_rows(np.flatnonzero(sizes == size)), size)

    def _plan_of(self, step: int, active: int, rows: slice | Tensor, size: int) -> BatchPlan:
        """One batch of clients whose batches have ``size`` examples."""
        device = self._order.device
        if self._is_even[step]:
            first = self._first[step, 0]
            indices = self._order[rows, first : first + size]
        else:
            first = self._first[step, rows]
            indices = self._order[rows].gather(1, torch.from_numpy(first[:, None] + np.arange(size)).to(device))
        keys = None
        if self._augment_keys is not None:
            epochs = torch.from_numpy(self._epoch[step, rows]).to(device)
            places = self._batch[step, rows, None] * self._batch_size + np.arange(size)
            # A key for each example of each epoch, by its place in the epoch: batches and cohorts do not matter.
            keys = fold(self._augment_keys[rows], epochs)[:, None] + torch.from_numpy(places).to(device)
        return BatchPlan(step, active, rows, indices, keys, size)

    def _padded(self, padding: Padding) -> Iterator[BatchPlan]:
        """All clients of a step in one batch: short ones repeat their last example, with weight zero."""
        device, clients = self._order.device, np.arange(len(self._order))
        # Places, weights and keys [S, C, width] of a block of many steps are computed in one operation each, in numpy,
        # since sizes are there; one copy brings a block to the device. A step then only takes its part.
        per_block = max(1, _AT_A_TIME // (len(clients) * padding.width))
        for start in range(0, len(self._size), per_block):
            block = slice(start, start + per_block)
            working = clients < self._active[block, None]
            sizes = np.where(working, self._size[block], 0)[..., None]
            # 0, 1, .., size - 1, size - 1, ..: an example that exists, so that no padding is ever nan times zero.
            columns = np.minimum(np.arange(padding.width), np.maximum(sizes, 1) - 1)
            # Clients that are done have no epoch of that number in `_order`: they repeat the first example of all.
            firsts = np.where(working, self._first[block], 0)[..., None]
            places = torch.from_numpy(firsts + columns).to(device)
            is_used = torch.from_numpy(np.arange(padding.width) < sizes).to(device, padding.dtype)
            # 1 / size, as in a mean; clients that are done have size 0, and weights 0 instead of nan.
            weights = is_used / is_used.sum(dim=2, keepdim=True).clamp_(min=1)
            keys = None
            if self._augment_keys is not None:
                shifts = torch.from_numpy(self._batch[block, :, None] * self._batch_size + columns).to(device)
                epochs = torch.from_numpy(self._epoch[block]).to(device)
                keys = fold(self._augment_keys, epochs)[..., None] + shifts
            counted = sizes[..., 0].astype(np.float64)
            for index, active in enumerate(self._active[block].tolist()):
                count = min(len(clients), -(-active // padding.rows) * padding.rows)  # the next multiple
                yield BatchPlan(
                    start + index,
                    active,
                    slice(0, count),
                    self._order[:count].gather(1, places[index, :count]),
                    None if keys is None else keys[index, :count],
                    counted[index, :count],
                    weights[index, :count],
                )


def _shuffled(indices: Tensor, sizes: Tensor, epochs: int, keys: Tensor | None) -> Tensor:
    """Every client's examples in the order of each epoch, one epoch after another [C, epochs * n_max].

    Without keys in stored order.
    """
    if keys is None:
        return indices.repeat(1, epochs)
    count, width = indices.shape
    beyond = torch.arange(width, device=indices.device) >= sizes.to(indices.device)[:, None]
    parts = []
    for some in torch.arange(epochs, device=indices.device).split(max(1, _AT_A_TIME // (count * width))):
        # A permutation is the order of random numbers. Where a row is padded the number is the largest there is, so
        # that padding comes last; the sort is stable, so that even a draw of that number would leave examples before.
        draws = random_bits(fold(keys[:, None], some), width).masked_fill_(beyond[:, None], _LAST)
        parts.append(indices[:, None].expand_as(draws).gather(2, draws.argsort(dim=2, stable=True)))
    return torch.cat(parts, dim=1).reshape(count, epochs * width)


class ReplacementSchedule:
    """Independent draws with replacement: every batch of every client has ``batch_size`` examples.

    Args:
        indices: positions of each client's examples [C, n_max], padded.
        sizes: how many there are [C] (CPU).
        num_steps: local steps [C] (CPU), descending.
        batch_size: b.
        keys: one key per client [C], on the device of ``indices``.
        augment_keys: likewise; None where nothing is augmented.
    """

    def __init__(
        self,
        indices: Tensor,
        sizes: Tensor,
        num_steps: Tensor,
        batch_size: int,
        keys: Tensor,
        augment_keys: Tensor | None,
    ) -> None:
        self._batch_size = batch_size
        self._active = (num_steps.numpy() > np.arange(int(num_steps.max()))[:, None]).sum(axis=1)
        # Remainders of 63 bits: the bias towards small positions is below 1e-12.
        draws = random_bits(keys, len(self._active) * batch_size) % sizes.to(indices.device)[:, None]
        self._order = indices.gather(1, draws)
        self._keys = None if augment_keys is None else augment_keys[:, None] + torch.arange(draws.shape[1]).to(draws)

    def __iter__(self) -> Iterator[BatchPlan]:
        for step, active in enumerate(self._active.tolist()):
            columns = slice(step * self._batch_size, (step + 1) * self._batch_size)
            keys = None if self._keys is None else self._keys[:active, columns]
            indices = self._order[:active, columns]
            yield BatchPlan(step, active, slice(0, active), indices, keys, self._batch_size)


def _plan(sizes: Tensor, num_steps: Tensor, batch_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every step of every client [S, C]: its epoch, which batch of it, and how large that is."""
    step = np.arange(int(num_steps.max()))[:, None]
    steps_per_epoch = steps_per_epoch_of(sizes, batch_size).numpy()
    batch = step % steps_per_epoch
    return step // steps_per_epoch, batch, np.minimum(batch_size, sizes.numpy() - batch * batch_size)


def count_calls(sizes: Tensor, num_steps: Tensor, batch_size: int) -> tuple[int, int]:
    """Number of batches of a cohort if clients with batches of equal size share one, and if none are shared."""
    _, _, size = _plan(sizes, num_steps, batch_size)
    working = num_steps.numpy() > np.arange(len(size))[:, None]
    return sum(len(np.unique(row[mask])) for row, mask in zip(size, working, strict=True)), int(working.sum())


def steps_per_epoch_of(sizes: Tensor, batch_size: int) -> Tensor:
    """Number of batches in one epoch [C]; the last one may be smaller."""
    return (sizes + batch_size - 1) // batch_size


def _as_rows(members: np.ndarray) -> slice | Tensor:
    """Row numbers; as a slice where they are neighbours, which makes views instead of copies."""
    first, last = int(members[0]), int(members[-1])
    return slice(first, last + 1) if last - first + 1 == len(members) else torch.from_numpy(members)
