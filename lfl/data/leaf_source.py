"""FEMNIST and Shakespeare, as LEAF prepares them: every client is a writer, or a role of a play.

S. Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018, https://arxiv.org/abs/1812.01097,
https://github.com/TalwalkarLab/leaf
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from lfl.data.columns import DataError
from lfl.data.examples import TensorData
from lfl.data.sources import Source

LEAFName = Literal["femnist", "shakespeare"]

# LEAF's own alphabet, in its order: a character's place is its index, and its class.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"

_NUM_CLASSES = {"femnist": 62, "shakespeare": len(ALPHABET)}
_SIDE = 28  # pixels of FEMNIST's images
_LENGTH = 80  # characters before the one that is predicted
_ABSENT = 255  # of characters that the alphabet does not have
_KEYS = ("users", "num_samples", "user_data")


class _User(NamedTuple):
    """A user's examples: inputs (n, ...) and labels (n,)."""

    inputs: NDArray[np.uint8]
    labels: NDArray[np.int64]


class LEAFSource(Source):
    """LEAF's FEMNIST or Shakespeare, read from the JSON files that its ``preprocess.sh`` writes.

    FEMNIST's inputs are (n, 1, 28, 28), float32 in [0, 1], 1 where the paper is blank; classes are the digits, the
    capital letters and the small ones. Shakespeare's are 80 characters, (n, 80) uint8 indices into LEAF's alphabet of
    80; the class is the character that comes next. Natural groups are the users, by name: `NaturalPartitioner` makes
    clients of them, which are tested on their own test examples.

    Args:
        dataset: name of the data set.
        root: folder that has the files in ``femnist/data/train`` and ``femnist/data/test``, likewise for shakespeare:
            LEAF's own folder ``data``.
        classes: labels that are kept, and numbered in ascending order; others' examples are left out. None for all.
        as_uint8: keep FEMNIST's pixels as bytes 0..255 instead of float32 in [0, 1]: a quarter of the memory. Then put
            `ToFloat` among the transforms.

    Raises:
        ValueError: `dataset` is not one of the allowed names, or `classes` are not labels.
    """

    def __init__(
        self,
        dataset: LEAFName = "femnist",
        root: str = "data",
        classes: list[int] | None = None,
        as_uint8: bool = False,
    ) -> None:
        if dataset not in _NUM_CLASSES:
            raise ValueError(f"`dataset={dataset!r}` of LEAFSource must be one of {list(_NUM_CLASSES)}.")
        most = _NUM_CLASSES[dataset]
        if classes is not None and not (classes and all(0 <= label < most for label in classes)):
            raise ValueError(f"`classes={classes}` of LEAFSource must be labels of {dataset}, 0 to {most - 1}.")
        self.dataset = dataset
        self.root = root
        self.classes = classes
        self.as_uint8 = as_uint8
        self.num_classes = most if classes is None else len(set(classes))

    @override
    def check(self) -> None:
        for part in ("train", "test"):
            self._files(part)

    @override
    def load(self) -> tuple[TensorData, TensorData]:
        train, test = (self._users(part) for part in ("train", "test"))
        names = sorted({*train, *test})
        return self._data(train, names, "train"), self._data(test, names, "test")

    def _files(self, part: str) -> list[Path]:
        folder = Path(self.root) / self.dataset / "data" / part
        files = sorted(folder.glob("*.json"))
        if not files:
            split = "-s niid --sf 1.0 -k 0 -t sample"
            raise FileNotFoundError(
                f"LEAF's {self.dataset} is not at {str(folder.resolve())!r}: no file '*.json' there. Clone "
                f"https://github.com/TalwalkarLab/leaf, run `./preprocess.sh {split}` in its folder "
                f"data/{self.dataset}, and set `root` (now {self.root!r}) to its folder data."
            )
        return files

    def _users(self, part: str) -> dict[str, _User]:
        """The examples of each user in all files of a part, those without any left out."""
        found: dict[str, _User] = {}
        read = _image_rows if self.dataset == "femnist" else _text_rows
        for path in self._files(part):
            for name, rows in _content(path, read).items():
                if name in found:
                    raise DataError(f"{str(path)!r} has the user {name!r}, whom another file beside it has too.")
                found[name] = self._checked(rows, name, path)
        return {name: user for name, user in found.items() if len(user.labels)}

    def _checked(self, rows: Any, name: str, path: Path) -> _User:
        place = f"User {name!r} of {str(path)!r}"
        if not isinstance(rows, _User):
            what = "784 numbers from 0 to 1" if self.dataset == "femnist" else f"{_LENGTH} characters, and y one each"
            raise DataError(f"{place} must have 'x' and 'y', equally long lists, x of {what}: the file is damaged.")
        is_wrong = (rows.labels < 0) | (rows.labels >= _NUM_CLASSES[self.dataset])
        if is_wrong.any() or (self.dataset == "shakespeare" and (rows.inputs == _ABSENT).any()):
            known = "the labels 0 to 61" if self.dataset == "femnist" else "the characters of LEAF's alphabet"
            raise DataError(f"{place} has something else than {known}: the file is damaged.")
        if self.classes is None:
            return rows
        kept = np.isin(rows.labels, self.classes)
        return _User(rows.inputs[kept], np.searchsorted(sorted(set(self.classes)), rows.labels[kept]))

    def _data(self, users: dict[str, _User], names: Sequence[str], part: str) -> TensorData:
        if not users:
            raise DataError(f"No user of {self._files(part)[0].parent} has an example of `classes={self.classes}`.")
        numbers = {name: number for number, name in enumerate(names)}
        inputs = torch.from_numpy(np.concatenate([user.inputs for user in users.values()]))
        labels = torch.from_numpy(np.concatenate([user.labels for user in users.values()])).long()
        groups = torch.tensor([numbers[name] for name in users])
        groups = groups.repeat_interleave(torch.tensor([len(user.labels) for user in users.values()]))
        return TensorData(self._scaled(inputs), labels, groups, users=tuple(names))

    def _scaled(self, inputs: Tensor) -> Tensor:
        if self.dataset == "shakespeare" or self.as_uint8:
            return inputs
        # In place: the whole set is large.
        return inputs.to(torch.float32).div_(255)


def _content(path: Path, read: Any) -> dict[str, Any]:
    """The data of each user in a file; a ``_User``, unless that is damaged.

    Users are made arrays as soon as they are parsed: as Python's numbers, all users of a file would take 8 GB.
    """

    def of_user(found: dict[str, Any]) -> Any:
        return read(found["x"], found["y"]) or found if found.keys() >= {"x", "y"} else found

    try:
        with path.open(encoding="utf-8") as file:
            content = json.load(file, object_hook=of_user)
    except ValueError as error:  # of JSON, or of UTF-8
        raise DataError(f"{str(path)!r} is no JSON, or damaged: {error}. Write it anew with LEAF.") from error
    missing = [key for key in _KEYS if not isinstance(content, dict) or key not in content]
    if missing:
        raise DataError(f"{str(path)!r} has no {missing[0]!r}: it is no file of LEAF, which has {', '.join(_KEYS)}.")
    data: dict[str, Any] = content["user_data"]
    for name, count in zip(content["users"], content["num_samples"], strict=False):
        if name not in data or (isinstance(data[name], _User) and len(data[name].labels) != count):
            said = "has no data" if name not in data else f"has {len(data[name].labels)} examples, not {count}"
            raise DataError(f"User {name!r} of {str(path)!r} {said}: the file is damaged.")
    return data


def _image_rows(x: Any, y: Any) -> _User | None:
    """A user's images and labels as bytes; None if they are no such."""
    try:
        # LEAF wrote bytes divided by 255.
        pixels = np.asarray(x, dtype=np.float64).reshape(len(y), 1, _SIDE, _SIDE)
        if ((pixels < 0) | (pixels > 1)).any():
            return None
        return _User(np.rint(pixels * 255).astype(np.uint8), np.asarray(y, dtype=np.int64).reshape(len(y)))
    except (ValueError, TypeError):
        return None


def _text_rows(x: Any, y: Any) -> _User | None:
    """A user's characters as indices into the alphabet; None if there are not 80 of each and one more."""
    try:
        if any(len(text) != _LENGTH for text in x) or any(len(text) != 1 for text in y) or len(x) != len(y):
            return None
        return _User(_indices(x).reshape(len(x), _LENGTH), _indices(y).astype(np.int64))
    except TypeError:
        return None


def _indices(texts: Sequence[str]) -> NDArray[np.uint8]:
    points = np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32)
    return _INDEX[np.minimum(points, len(_INDEX) - 1)]


_INDEX = np.full(129, _ABSENT, dtype=np.uint8)  # by ASCII, and one for all that is none
_INDEX[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
