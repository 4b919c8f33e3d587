"""Batches of some clients, on which a step is tried before it is taken in a faster way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from lfl.client.model import ClientModel
from lfl.client.step import Extras, StepInput
from lfl.data.base import FederatedData
from lfl.randomness import client_keys, random_bits, uniform

_CLIENTS = 4
_SOUGHT = 1024  # examples among which one is sought that is longer than others


@dataclass(frozen=True)
class Trial:
    """Equally many examples of each of a few clients, and a point for each of them, away from the server's model.

    Attributes:
        batch: nest of tensors ``[G, b, ...]``.
        keys: for the draws of each client [G].
        params: points [G, D].
        anchor: the model x [D].
        alone: the batch of each client as a ``collate_fn`` makes it of this client alone, ``[1, b, ...]``.
    """

    batch: Any
    keys: Tensor
    params: Tensor
    anchor: Tensor
    alone: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def batch_of(self, row: int) -> Any:
        """The batch of one client, without the dimension of clients."""
        return tree_map(lambda x: x[row], self.batch)

    def input(self, features: dict[str, Tensor]) -> StepInput:
        """The input from which a step of all clients is computed, given the features of x on their batches."""
        return StepInput(self.batch, self.keys, self.anchor, Extras(features, {}))

    def ragged(self, features: dict[str, Tensor]) -> StepInput:
        """The same, with batches of different lengths that are padded: weights as the engine makes them."""
        width = self.width
        lengths = torch.tensor([max(1, width - row * ((width + 1) // len(self))) for row in range(len(self))])
        used = (torch.arange(width) < lengths[:, None]).to(self.params)
        return self.input(features)._replace(weights=used / used.sum(dim=1, keepdim=True))

    @property
    def width(self) -> int:
        """Number of examples of each batch (b)."""
        return int(next(x.shape[1] for x in tree_leaves(self.batch) if isinstance(x, Tensor)))


def make_trial(model: ClientModel, data: FederatedData, seed: int) -> Trial:
    """Take examples of the largest client and of some others, drawn by the seed.

    Not at the server's model itself, where terms such as a distance from x are zero and would agree in any case.
    """
    sizes = data.client_sizes
    # The largest, and of the others those with most examples among some that are spread over the ids.
    spread = torch.linspace(0, len(sizes) - 1, min(len(sizes), 4 * _CLIENTS), dtype=torch.float64).long().unique()
    ids = torch.cat([sizes.argmax().reshape(1), spread[sizes[spread].argsort(descending=True, stable=True)]])
    ids = torch.tensor(list(dict.fromkeys(ids.tolist()))[:_CLIENTS])
    ids = ids[sizes[ids] > 0]
    # With few clients the same ones come again, with other examples.
    ids = ids.repeat(-(-3 // len(ids)))[:_CLIENTS]
    width = min(data.batch_size, int(sizes[ids].min()))
    device = model.parameters[0].device
    keys = client_keys(torch.arange(len(ids), device=device), seed, "trial")
    indices, _ = data.client_indices(ids)
    draws = random_bits(keys.cpu(), indices.shape[1])
    draws = draws.masked_fill(torch.arange(indices.shape[1]) >= sizes[ids][:, None], torch.iinfo(torch.int64).max)
    chosen = indices.gather(1, draws.argsort(dim=1, stable=True))[:, :width].to(device)
    if data.is_collated:
        chosen = _of_several_lengths(chosen, data)
    batch = model.converted(next(iter(data.batches([(chosen, chosen)]))))
    alone = tuple(model.converted(one) for one in data.batches([(row, row) for row in chosen.split(1)]))
    start = model.flat_parameters()
    noise = uniform(keys, start.numel(), start.dtype) - 0.5
    return Trial(batch, keys, start + 0.1 * start.abs().mean() * noise, start, alone)


def _of_several_lengths(chosen: Tensor, data: FederatedData) -> Tensor:
    """The positions of a trial [G, b], the first two batches as different in length as others of the data are.

    A ``collate_fn`` pads the batches of all clients to the longest one. Whether a step minds is seen only where some
    batch is longer than another, which few may be.
    """
    holding = (data.client_sizes > 0).nonzero().squeeze(1)
    clients = holding[torch.linspace(0, len(holding) - 1, min(_SOUGHT, len(holding)), dtype=torch.float64).long()]
    indices, sizes = data.client_indices(clients)
    each = -(-_SOUGHT // len(clients))
    spread = indices.gather(1, (torch.arange(each) * sizes[:, None] / each).long())
    some = torch.cat([spread.flatten().to(chosen.device), chosen.flatten()]).unique()
    singles = data.batches((position.reshape(1, 1), position.reshape(1, 1)) for position in some)
    lengths = torch.tensor([sum(x.numel() for x in tree_leaves(one) if isinstance(x, Tensor)) for one in singles])
    if bool((lengths == lengths[0]).all()):
        return chosen
    ordered, places = some[lengths.argsort(stable=True)], torch.arange(chosen.shape[1]) % len(some)
    return torch.cat([ordered.flip(0)[places][None], ordered[places][None], chosen[2:]])
