"""Which examples each client of a cohort sees at each local step."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lfl.randomness import fold, random_bits

_LAST = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class BatchPlan:
    """The batch of some clients at one step, all of the same size.

    Attributes:
        step: the local step.
        active: clients at work in this step.
        is_last: whether it completes the step.
        rows: the clients, as rows of the cohort.
        indices: positions in the training data [G, b].
        keys: keys of the examples' augmentation [G, b], if there is any.
    """

    step: int
    active: int
    is_last: bool
    rows: slice | Tensor
    indices: Tensor
    keys: Tensor | None


class LocalSchedule:
    """Walks C clients through their data: shuffled epochs, last partial batches kept, exactly as one at a time.

    Every epoch of a client is a permutation drawn from its key and the number of the epoch. Clients whose batches at a
    step have the same size form one batch ``[G, b, ...]``; nothing is padded.

    Args:
        indices: positions of each client's examples [C, n_max], padded.
        sizes: how many there are [C] (CPU).
        num_steps: local steps [C] (CPU), descending.
        batch_size: b.
        shuffle_keys: one key per client [C], on the device of ``indices``.
        augment_keys: likewise; None where nothing is augmented.
        shuffle: off for a pass in stored order.
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
    ) -> None:
        self._indices, self._batch_size, self._shuffle = indices, batch_size, shuffle
        self._shuffle_keys, self._augment_keys = shuffle_keys, augment_keys
        self._epoch, self._batch, self._size = _plan(sizes, num_steps, batch_size)
        self._active = (num_steps.numpy() > np.arange(len(self._size))[:, None]).sum(axis=1)
        self._order = torch.zeros_like(indices)
        self._beyond = torch.arange(indices.shape[1], device=indices.device) >= sizes.to(indices.device)[:, None]

    def __iter__(self) -> Iterator[BatchPlan]:
        for step, active in enumerate(self._active.tolist()):
            starting = np.flatnonzero(self._batch[step, :active] == 0)
            if len(starting):
                self._reshuffle(_as_rows(starting), torch.from_numpy(self._epoch[step, starting]))
            sizes = self._size[step, :active]
            distinct = np.unique(sizes)[::-1].tolist()
            for size in distinct:
                members = np.flatnonzero(sizes == size)
                offsets = self._batch[step, members] * self._batch_size
                rows = _as_rows(members)
                indices, keys = self._take(rows, offsets, size, self._epoch[step, members])
                yield BatchPlan(step, active, size == distinct[-1], rows, indices, keys)

    def _reshuffle(self, rows: slice | Tensor, epochs: Tensor) -> None:
        indices = self._indices[rows]
        if not self._shuffle:
            self._order[rows] = indices
            return
        keys = fold(self._shuffle_keys[rows], epochs.to(indices.device))
        draws = random_bits(keys, indices.shape[1]).masked_fill(self._beyond[rows], _LAST)
        self._order[rows] = indices.gather(1, draws.argsort(dim=1, stable=True))

    def _take(
        self, rows: slice | Tensor, offsets: np.ndarray, size: int, epochs: np.ndarray
    ) -> tuple[Tensor, Tensor | None]:
        device = self._indices.device
        order = self._order[rows]
        if (offsets == offsets[0]).all():
            indices = order[:, offsets[0] : offsets[0] + size]
        else:
            indices = order.gather(1, (torch.from_numpy(offsets)[:, None] + torch.arange(size)).to(device))
        if self._augment_keys is None:
            return indices, None
        columns = (torch.from_numpy(offsets)[:, None] + torch.arange(size)).to(device)
        epoch_keys = fold(self._augment_keys[rows], torch.from_numpy(epochs).to(device))
        return indices, epoch_keys[:, None] + columns


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
        # Of 63 bits: the bias towards small positions is below 1e-12.
        draws = random_bits(keys, len(self._active) * batch_size) % sizes.to(indices.device)[:, None]
        self._order = indices.gather(1, draws)
        self._keys = None if augment_keys is None else augment_keys[:, None] + torch.arange(draws.shape[1]).to(draws)

    def __iter__(self) -> Iterator[BatchPlan]:
        for step, active in enumerate(self._active.tolist()):
            columns = slice(step * self._batch_size, (step + 1) * self._batch_size)
            keys = None if self._keys is None else self._keys[:active, columns]
            yield BatchPlan(step, active, True, slice(0, active), self._order[:active, columns], keys)


def _plan(sizes: Tensor, num_steps: Tensor, batch_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every step of every client [S, C]: its epoch, which batch of it, and how large that is."""
    step = np.arange(int(num_steps.max()))[:, None]
    steps_per_epoch = steps_per_epoch_of(sizes, batch_size).numpy()
    batch = step % steps_per_epoch
    return step // steps_per_epoch, batch, np.minimum(batch_size, sizes.numpy() - batch * batch_size)


def count_calls(sizes: Tensor, num_steps: Tensor, batch_size: int) -> tuple[int, int]:
    """How many batches a cohort takes when clients with batches of equal size share one, and how many apart."""
    _, _, size = _plan(sizes, num_steps, batch_size)
    working = num_steps.numpy() > np.arange(len(size))[:, None]
    return sum(len(np.unique(row[mask])) for row, mask in zip(size, working, strict=True)), int(working.sum())


def steps_per_epoch_of(sizes: Tensor, batch_size: int) -> Tensor:
    """Batches in one epoch [C]; the last one may be smaller."""
    return (sizes + batch_size - 1) // batch_size


def _as_rows(members: np.ndarray) -> slice | Tensor:
    """Neighbouring rows as a slice, which makes views instead of copies."""
    first, last = int(members[0]), int(members[-1])
    return slice(first, last + 1) if last - first + 1 == len(members) else torch.from_numpy(members)
