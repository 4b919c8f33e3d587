"""The image data sets of torchvision, loaded into memory."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.data.examples import TensorData
from lfl.data.sources import Source

DatasetName = Literal["CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "EMNIST"]
EMNISTSplit = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]

_EMNIST_CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}
_IDX_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")
_IDX_FILES = tuple(f"{prefix}-{kind}" for prefix in ("train", "t10k") for kind in _IDX_KINDS)


class _Layout(NamedTuple):
    """Places where torchvision keeps a data set's files below `root`; repeated here to check without importing it."""

    folder: str
    files: tuple[str, ...]
    num_classes: int


_LAYOUTS = {
    "CIFAR10": _Layout(
        "cifar-10-batches-py", (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"), 10
    ),
    "CIFAR100": _Layout("cifar-100-python", ("train", "test", "meta"), 100),
    "MNIST": _Layout("MNIST/raw", _IDX_FILES, 10),
    "FashionMNIST": _Layout("FashionMNIST/raw", _IDX_FILES, 10),
}


class TorchvisionSource(Source):
    """CIFAR-10, CIFAR-100, MNIST, Fashion-MNIST or EMNIST, read from torchvision's files into tensors.

    Inputs are (n, channels, height, width) with 3 or 1 channels. Labels count from 0, those of EMNIST's letters too.
    EMNIST's images are transposed, as in the published files and in torchvision.

    Args:
        dataset: name of the data set.
        root: folder that holds, or will hold, torchvision's folders (``cifar-10-batches-py``, ``MNIST/raw`` ...).
        download: download missing files. If the files are there, the network is not used.
        split: which split of EMNIST; ignored for the other data sets.
        as_uint8: keep bytes 0..255 instead of float32 in [0, 1]: a quarter of the memory. Then put `ToFloat` among the
            transforms.
        first_classes: read only the examples of the first so many classes.

    Raises:
        ValueError: `dataset` or `split` is not one of the allowed names, or there are fewer classes.
    """

    def __init__(
        self,
        dataset: DatasetName = "CIFAR10",
        root: str = "data",
        download: bool = False,
        split: EMNISTSplit = "balanced",
        as_uint8: bool = False,
        first_classes: PositiveInt | None = None,
    ) -> None:
        if dataset not in (*_LAYOUTS, "EMNIST"):
            raise ValueError(f"`dataset={dataset!r}` of TorchvisionSource must be one of {[*_LAYOUTS, 'EMNIST']}.")
        if split not in _EMNIST_CLASSES:
            raise ValueError(f"`split={split!r}` of TorchvisionSource must be one of {list(_EMNIST_CLASSES)}.")
        self.dataset = dataset
        self.root = root
        self.download = download
        self.split = split
        self.as_uint8 = as_uint8
        self._layout = _emnist_layout(split) if dataset == "EMNIST" else _LAYOUTS[dataset]
        if first_classes is not None and not 1 <= first_classes <= self._layout.num_classes:
            raise ValueError(
                f"`first_classes={first_classes}` of TorchvisionSource must be 1 to {self._layout.num_classes}: "
                f"{dataset} has no more."
            )
        self.first_classes = first_classes
        self.num_classes = int(first_classes or self._layout.num_classes)

    @override
    def check(self) -> None:
        missing = self._missing()
        if missing and not self.download:
            raise FileNotFoundError(
                f"{self.dataset} is not at {str(self._folder.resolve())!r}: no file {missing[0]!r}. Set `root` "
                f"(now {self.root!r}) to the folder that holds {self._layout.folder!r}, or set `download: true` to "
                f'fetch it there, or run once: python -c "{self._fetching_code()}".'
            )

    @override
    def prepare(self) -> None:
        self.check()
        # First without the lock: nothing is written into a folder that is complete, which may be read-only.
        if not self._missing():
            return
        from filelock import FileLock

        Path(self.root).mkdir(parents=True, exist_ok=True)
        # Two processes that unpack into one folder at the same time would break each other's files.
        with FileLock(Path(self.root) / f".{self.dataset}.lock"):
            if self._missing():  # unless another process has fetched them while this one waited
                self._open(train=True, download=True)

    @override
    def load(self) -> tuple[TensorData, TensorData]:
        self.prepare()
        try:
            return self._read(train=True), self._read(train=False)
        except RuntimeError as error:
            folder = str(self._folder.resolve())
            raise RuntimeError(f"{self.dataset} at {folder!r} is damaged; delete that folder, get it anew.") from error

    @property
    def _folder(self) -> Path:
        return Path(self.root) / self._layout.folder

    def _missing(self) -> list[str]:
        return [name for name in self._layout.files if not (self._folder / name).is_file()]

    def _fetching_code(self) -> str:
        split = f", split={self.split!r}" if self.dataset == "EMNIST" else ""
        return f"import torchvision as tv; tv.datasets.{self.dataset}({self.root!r}{split}, download=True)"

    def _open(self, train: bool, download: bool = False) -> Any:
        from torchvision import datasets

        make: Callable[..., Any] = getattr(datasets, self.dataset)
        split = {"split": self.split} if self.dataset == "EMNIST" else {}
        with warnings.catch_warnings():
            # The published pickles of CIFAR are older than this rule of numpy 2.4.
            warnings.filterwarnings("ignore", message=r"dtype\(\): align should be passed")
            return make(self.root, train=train, download=download, **split)

    def _read(self, train: bool) -> TensorData:
        opened = self._open(train)
        images = torch.as_tensor(opened.data)
        images = images.permute(0, 3, 1, 2).contiguous() if images.dim() == 4 else images.unsqueeze(1)
        labels = torch.as_tensor(opened.targets).long()
        if self.dataset == "EMNIST" and self.split == "letters":
            labels = labels - 1  # torchvision counts the letters from 1
        if self.first_classes is not None:
            is_wanted = labels < self.first_classes
            images, labels = images[is_wanted], labels[is_wanted]
        return TensorData(images if self.as_uint8 else _scaled(images), labels)


def _emnist_layout(split: str) -> _Layout:
    files = tuple(f"emnist-{split}-{subset}-{kind}" for subset in ("train", "test") for kind in _IDX_KINDS)
    return _Layout("EMNIST/raw", files, _EMNIST_CLASSES[split])


def _scaled(images: Tensor) -> Tensor:
    return images.to(torch.float32).div_(255)
