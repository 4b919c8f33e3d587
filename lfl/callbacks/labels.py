"""The class labels of a batch, for terms of the loss that read them."""

from typing import Any

from torch import Tensor

from lfl.data.base import FederatedData
from lfl.data.nests import leaves_of, part_of, path_to
from lfl.randomness import client_keys


def labels_of(batch: Any, target: str | int) -> Tensor:
    """The labels of a batch: its part ``target``, a key of a dict, a place in a tuple, or a path of such with dots.

    Raises:
        KeyError: there is no such part.
    """
    path = path_to(batch, target)
    if path is None:
        raise KeyError(target)
    labels: Tensor = part_of(batch, path)
    return labels


def read_labels(data: FederatedData, indices: Tensor, target: str | int, seed: int) -> Tensor:
    """The labels of training examples at positions ``indices`` [C, n]."""
    # Augmentation changes no label, but a data set that draws must be given keys.
    keys = client_keys(indices, seed, "labels") if data.has_random_transforms else None
    return labels_of(data.gather(indices, keys), target)


def check_labels(owner: str, data: FederatedData, target: str | int, seed: int) -> None:
    """Look at one example of the training data.

    Raises:
        ValueError: it has no part ``target``, or that is no class label.
    """
    first = data.client_indices(data.client_sizes.argmax().reshape(1))[0][:, :1]
    setting = f"`target={target}` of {owner}"
    try:
        labels = read_labels(data, first, target, seed)
    except KeyError:
        keys = client_keys(first, seed, "labels") if data.has_random_transforms else None
        names = ", ".join(".".join(map(str, path)) for path, _ in leaves_of(data.gather(first, keys)))
        raise ValueError(f"{setting} names no part of a batch, which has: {names}.") from None
    is_label = isinstance(labels, Tensor) and labels.shape == (1, 1) and not labels.is_floating_point()
    if not is_label:
        found = f"{labels.dtype} of shape {tuple(labels.shape[1:])}" if isinstance(labels, Tensor) else "no numbers"
        raise ValueError(f"{setting} must be class labels, one whole number for each example, and is {found}.")


def check_logits(owner: str, setting: str, name: str, logits: Tensor, num_classes: int) -> None:
    """Check that logits [b, classes] are enough for the classes of the data.

    Args:
        owner: the callback that reads them.
        setting: its setting that says which submodule gives them.
        name: of the submodule.
        logits: what it gave.
        num_classes: of the data; 0 where that is not known yet.

    Raises:
        ValueError: there are fewer.
    """
    if logits.dim() != 2 or logits.shape[1] < num_classes:
        raise ValueError(
            f"`{setting}={name}` of {owner} must give a logit for each of {num_classes} classes, and gives outputs of "
            f"shape {tuple(logits.shape[1:])}."
        )
