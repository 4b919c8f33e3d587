"""torchvision's data sets, on tiny files written in the published formats."""

import hashlib
import pickle
import re
import time

import numpy as np
import pytest
import torch
from torchvision import datasets

from lfl.data import TorchvisionSource

RNG = np.random.default_rng(0)
CIFAR10_FILES = [f"data_batch_{i}" for i in range(1, 6)]


def write_pickle(path, content) -> list[str]:
    """Writes the file; returns (name, md5), as in torchvision's lists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = pickle.dumps(content)
    path.write_bytes(raw)
    return [path.name, hashlib.md5(raw, usedforsecurity=False).hexdigest()]


def write_cifar(root, monkeypatch, name, folder, train_files, test_file, meta_file, label_key, meta_key):
    """Two images a file. torchvision knows the published files by their checksums: it is told those of ours."""
    pixels = RNG.integers(0, 256, (2 * len(train_files) + 2, 3072), dtype=np.uint8)
    labels = RNG.integers(0, 10, len(pixels)).tolist()
    entries = [
        write_pickle(root / folder / file, {"data": pixels[2 * i : 2 * i + 2], label_key: labels[2 * i : 2 * i + 2]})
        for i, file in enumerate([*train_files, test_file])
    ]
    meta = write_pickle(root / folder / meta_file, {meta_key: [str(i) for i in range(10)]})
    monkeypatch.setattr(getattr(datasets, name), "train_list", entries[:-1])
    monkeypatch.setattr(getattr(datasets, name), "test_list", entries[-1:])
    monkeypatch.setattr(getattr(datasets, name), "meta", {"filename": meta_file, "key": meta_key, "md5": meta[1]})
    return torch.from_numpy(pixels).reshape(-1, 3, 32, 32), labels


def write_idx(path, array) -> None:
    """The IDX format: two zero bytes, 8 for unsigned bytes, dimensions, big-endian lengths, data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + b"".join(length.to_bytes(4, "big") for length in array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def write_mnist(folder, train="train", test="t10k", first_label=0):
    images, labels = RNG.integers(0, 256, (5, 28, 28)), np.array([3, 0, 9, 1, 2]) + first_label
    for part, chosen in ((train, slice(0, 3)), (test, slice(3, 5))):
        write_idx(folder / f"{part}-images-idx3-ubyte", images[chosen])
        write_idx(folder / f"{part}-labels-idx1-ubyte", labels[chosen])
    return torch.from_numpy(images)


@pytest.mark.parametrize(
    ("name", "layout", "num_classes"),
    [
        ("CIFAR10", ("cifar-10-batches-py", CIFAR10_FILES, "test_batch", "batches.meta", "labels", "label_names"), 10),
        ("CIFAR100", ("cifar-100-python", ["train"], "test", "meta", "fine_labels", "fine_label_names"), 100),
    ],
)
def test_cifar(tmp_path, monkeypatch, name, layout, num_classes):
    pixels, labels = write_cifar(tmp_path, monkeypatch, name, *layout)
    source = TorchvisionSource(name, root=str(tmp_path), as_uint8=True)
    source.check()
    train, test = source.load()
    assert torch.equal(torch.cat([train.inputs, test.inputs]), pixels)
    assert train.inputs.is_contiguous()
    assert train.targets.tolist() + test.targets.tolist() == labels
    assert source.num_classes == num_classes
    scaled = TorchvisionSource(name, root=str(tmp_path)).load()[0].inputs
    torch.testing.assert_close(scaled, pixels[:-2].float() / 255, rtol=0, atol=0)


def test_damaged_cifar_is_refused(tmp_path, monkeypatch):
    layout = ("cifar-100-python", ["train"], "test", "meta", "fine_labels", "fine_label_names")
    write_cifar(tmp_path, monkeypatch, "CIFAR100", *layout)
    (tmp_path / "cifar-100-python" / "train").write_bytes(b"half a file")
    with pytest.raises(RuntimeError, match=r"CIFAR100 at .*cifar-100-python' is damaged"):
        TorchvisionSource("CIFAR100", root=str(tmp_path)).load()


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
def test_mnist(tmp_path, name):
    images = write_mnist(tmp_path / name / "raw")
    train, test = TorchvisionSource(name, root=str(tmp_path), as_uint8=True).load()
    assert torch.equal(torch.cat([train.inputs, test.inputs]).squeeze(1), images)
    assert train.inputs.dtype == torch.uint8
    assert (train.targets.tolist(), test.targets.tolist()) == ([3, 0, 9], [1, 2])


@pytest.mark.parametrize(("split", "first_label", "num_classes"), [("balanced", 0, 47), ("letters", 1, 26)])
def test_emnist_labels_count_from_0(tmp_path, split, first_label, num_classes):
    write_mnist(tmp_path / "EMNIST" / "raw", f"emnist-{split}-train", f"emnist-{split}-test", first_label)
    source = TorchvisionSource("EMNIST", root=str(tmp_path), split=split)
    train, test = source.load()
    assert (train.targets.tolist(), test.targets.tolist()) == ([3, 0, 9], [1, 2])
    assert source.num_classes == num_classes


def test_the_first_classes_alone(tmp_path):
    images = write_mnist(tmp_path / "MNIST" / "raw")
    source = TorchvisionSource("MNIST", root=str(tmp_path), as_uint8=True, first_classes=3)
    train, test = source.load()
    assert (train.targets.tolist(), test.targets.tolist(), source.num_classes) == ([0], [1, 2], 3)
    assert torch.equal(train.inputs[0, 0], images[1])
    with pytest.raises(ValueError, match=r"`first_classes=11` of TorchvisionSource must be 1 to 10: MNIST has no more"):
        TorchvisionSource("MNIST", first_classes=11)


@pytest.mark.parametrize("name", ["CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "EMNIST"])
def test_missing_data_is_told_at_once(tmp_path, name):
    source = TorchvisionSource(name, root=str(tmp_path))
    start = time.perf_counter()
    with pytest.raises(FileNotFoundError, match=rf"{name} is not at '{re.escape(str(tmp_path))}/.*`download: true`"):
        source.check()
    with pytest.raises(FileNotFoundError, match=name):
        source.load()
    assert time.perf_counter() - start < 1


def test_download_is_asked_of_torchvision_once_and_only_for_what_is_missing(tmp_path, monkeypatch):
    calls = []

    def fetch(self):
        if not (tmp_path / "MNIST").exists():
            calls.append(self.root)
            write_mnist(tmp_path / "MNIST" / "raw")

    monkeypatch.setattr(datasets.MNIST, "download", fetch)
    source = TorchvisionSource("MNIST", root=str(tmp_path), download=True)
    source.check()
    source.prepare()
    source.prepare()
    assert len(source.load()[0]) == 3
    assert len(calls) == 1


@pytest.mark.parametrize(("setting", "value"), [("dataset", "CIFAR11"), ("split", "all")])
def test_unknown_names(setting, value):
    with pytest.raises(ValueError, match=f"`{setting}='{value}'` of TorchvisionSource must be one of"):
        TorchvisionSource(**{setting: value})
