"""A step of one client with plain autograd and the module as it is: what every faster way must agree with."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from lfl.client.model import ClientModel
from lfl.client.step import StepInput, StepResult, at_row


def plain_step(model: ClientModel, params: Tensor, input: StepInput) -> StepResult:
    """The step of one client with parameters [1, D], by the module's own parameters."""
    # Bind each time: passes at other points (SAM, the server's model) leave other parameters in the module.
    model.bind(params[0])
    batch, extras = first_of(input.batch), first_of(input.extras)
    loss, logs = model.loss(None, batch, input.number, input.keys[0], input.anchor, extras)
    if model.traits.changed_parameters:
        model.reclaim(params[0])
    return StepResult(model.gradient_of(loss).unsqueeze(0), loss.detach().unsqueeze(0), logs)


def plain_features(model: ClientModel, batch: Any, keys: Tensor, params: Tensor) -> dict[str, Tensor]:
    """The features of a frozen model, [D] or [1, D], on the batch of one client, by the module's own parameters."""
    model.bind(params.flatten())  # `plain_step` binds the client's row again
    features = model.global_features(first_of(batch), keys[0], None)
    return {name: value.unsqueeze(0) for name, value in features.items()}


def frozen_features(
    model: ClientModel, anchor: Tensor, rows: Mapping[str, Tensor], read: Callable[[Tensor], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """All features that the loss terms read.

    Args:
        model: knows which of the rows are frozen models.
        anchor: x [D].
        rows: those of the loss terms [G, ...], by name.
        read: reads the features of a frozen model, x [D] or one for each client [G, D].
    """
    features = read(anchor)
    for name, params in model.frozen_rows_in(rows).items():
        features |= {at_row(name, submodule): value for submodule, value in read(params).items()}
    return features


def first_of(nest: Any) -> Any:
    """The only client's tensors, from a nest of tensors ``[1, ...]``."""
    return tree_map(lambda x: x[0], nest)
