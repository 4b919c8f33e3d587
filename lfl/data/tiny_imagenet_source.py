"""Tiny-ImageNet: 100,000 images of 64 pixels in 200 classes, read when batches need them.

Y. Le, X. Yang, "Tiny ImageNet Visual Recognition Challenge", CS 231N, 2015, http://cs231n.stanford.edu/tiny-imagenet-200.zip
"""

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from lfl.data.columns import DataError
from lfl.data.examples import Data, ItemData, TensorData
from lfl.data.sources import Source

_FOLDER = "tiny-imagenet-200"
_NUM_CLASSES = 200
_SIDE = 64  # pixels
_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"


class TinyImageNetSource(Source):
    """Tiny-ImageNet, read from its folder; its validation set is the test set, since that of tests has no labels.

    Inputs are (3, 64, 64). Classes are in the order of their names, which are WordNet's (``n01443537``).

    Args:
        root: folder that holds the folder ``tiny-imagenet-200``.
        in_memory: decode all images once and keep them, which as bytes takes 1.4 GB. If false, an image is decoded when
            a batch needs it, which takes some 0.15 ms; `num_workers` of the data module are processes that do so ahead.
        as_uint8: give bytes 0..255 instead of float32 in [0, 1]: a quarter of the memory, and of what workers send.
            Then put `ToFloat` among the transforms.
    """

    num_classes = _NUM_CLASSES

    def __init__(self, root: str = "data", in_memory: bool = False, as_uint8: bool = False) -> None:
        self.root = root
        self.in_memory = in_memory
        self.as_uint8 = as_uint8

    @override
    def check(self) -> None:
        for name in ("train", "val/images", "val/val_annotations.txt"):
            if not (self._folder / name).exists():
                raise FileNotFoundError(
                    f"Tiny-ImageNet is not at {str(self._folder.resolve())!r}: there is no {name!r}. Get {_URL} "
                    f"(240 MB), unpack it, and set `root` (now {self.root!r}) to the folder that has {_FOLDER!r} then."
                )

    @override
    def load(self) -> tuple[Data, Data]:
        self.check()
        classes = tuple(sorted(entry.name for entry in os.scandir(self._folder / "train") if entry.is_dir()))
        if len(classes) != _NUM_CLASSES:
            raise DataError(
                f"{str(self._folder / 'train')!r} has {len(classes)} folders of classes, not {_NUM_CLASSES}: delete "
                f"{_FOLDER!r}, and unpack it anew."
            )
        train, test = self._training_images(classes), self._validation_images(classes)
        return self._data(train, classes, "train"), self._data(test, classes, "val")

    @property
    def _folder(self) -> Path:
        return Path(self.root) / _FOLDER

    def _training_images(self, classes: tuple[str, ...]) -> "_Images":
        files, labels = [], []
        for label, name in enumerate(classes):
            found = _images_in(self._folder / "train" / name / "images")
            files += [f"train/{name}/images/{file}" for file in found]
            labels += [label] * len(found)
        return _Images(str(self._folder), files, torch.tensor(labels), self.as_uint8)

    def _validation_images(self, classes: tuple[str, ...]) -> "_Images":
        label_of = {name: label for label, name in enumerate(classes)}
        there = set(_images_in(self._folder / "val" / "images"))
        path = self._folder / "val" / "val_annotations.txt"
        files, labels = [], []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            file, name, *_ = [*line.split("\t"), ""]
            if file not in there or name not in label_of:
                what = (
                    f"the class {name!r}, which is not in train" if file in there else f"{file!r}, which is not there"
                )
                raise DataError(f"Line {number} of {str(path)!r} names {what}: the folder is damaged.")
            files.append(f"val/images/{file}")
            labels.append(label_of[name])
        if not files:
            raise DataError(f"{str(path)!r} is empty: the folder is damaged.")
        return _Images(str(self._folder), files, torch.tensor(labels), self.as_uint8)

    def _data(self, images: "_Images", classes: tuple[str, ...], part: str) -> Data:
        if not self.in_memory:
            name = f"{part} of {_FOLDER}"
            return ItemData(images, name, images.targets, classes=classes, has_labels=True)
        return TensorData(images.all(), images.targets, classes=classes)


class _Images(Dataset[tuple[Tensor, Tensor]]):
    """Images in files, each decoded when it is asked for.

    Args:
        folder: that has the files.
        files: their paths in the folder, which are kept as one array: as a list of strings, whose counts of references
            change whenever one is read, each worker process would have the whole of it anew.
        targets: class of each image [n].
        as_uint8: whether pixels are bytes, not float32 in [0, 1].
    """

    def __init__(self, folder: str, files: list[str], targets: Tensor, as_uint8: bool) -> None:
        self.folder = folder
        self.files = np.array([os.fsencode(file) for file in files])
        self.targets = targets
        self.as_uint8 = as_uint8

    def __len__(self) -> int:
        return len(self.files)

    @override
    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        image = _decoded(os.path.join(self.folder, os.fsdecode(bytes(self.files[i]))))
        return image if self.as_uint8 else image.to(torch.float32) / 255, self.targets[i]

    def all(self) -> Tensor:
        """All images (n, 3, 64, 64)."""
        found = torch.empty(len(self), 3, _SIDE, _SIDE, dtype=torch.uint8 if self.as_uint8 else torch.float32)
        with ThreadPoolExecutor() as threads:
            for place, (image, _) in zip(itertools.count(), threads.map(self.__getitem__, range(len(self)))):
                found[place] = image
        return found


def _images_in(folder: Path) -> list[str]:
    """Names of the images in a folder, in ascending order.

    Raises:
        DataError: there is no such folder, it has no images, or an empty one.
    """
    if not folder.is_dir():
        raise DataError(f"There is no folder {str(folder)!r}: delete {_FOLDER!r}, and unpack it anew.")
    with os.scandir(folder) as entries:
        sizes = {entry.name: entry.stat().st_size for entry in entries if entry.name.endswith(".JPEG")}
    if not sizes or not all(sizes.values()):
        wrong = next((name for name, size in sizes.items() if not size), None)
        said = "has no file '*.JPEG'" if wrong is None else f"has {wrong!r}, which is empty"
        raise DataError(f"The folder {str(folder)!r} {said}: delete {_FOLDER!r}, and unpack it anew.")
    return sorted(sizes)


def _decoded(path: str) -> Tensor:
    """An image (3, 64, 64) uint8; one without colours has three equal channels."""
    from PIL import Image

    try:
        with open(path, "rb") as file, Image.open(file, formats=("JPEG",)) as opened:
            image = torch.from_numpy(np.array(opened.convert("RGB"))).permute(2, 0, 1)
    except OSError as error:  # Pillow's own errors are such, too
        raise DataError(f"The image {path!r} is damaged, or missing: {error}. Unpack {_FOLDER!r} anew.") from error
    if image.shape != (3, _SIDE, _SIDE):
        raise DataError(f"The image {path!r} has {image.shape[2]} x {image.shape[1]} pixels, not {_SIDE} x {_SIDE}.")
    return image
