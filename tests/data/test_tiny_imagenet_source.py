"""Tiny-ImageNet in its folder."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from published_files import write_jpeg, write_tiny_imagenet

from lfl.data import FederatedDataModule, IIDPartitioner, RandomHorizontalFlip, TinyImageNetSource, ToFloat
from lfl.data.examples import TensorData

TRAIN = "tiny-imagenet-200/train/n00000007/images/n00000007_0.JPEG"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_tiny_imagenet(root)
    write_jpeg(root / TRAIN, 7, mode="L")  # as some of the published images
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Files of its own, to be damaged."""
    write_tiny_imagenet(tmp_path)
    return tmp_path


@pytest.mark.parametrize("in_memory", [False, True])
def test_images_with_their_classes(written: Path, in_memory: bool) -> None:
    source = TinyImageNetSource(str(written), in_memory, as_uint8=True)
    data = FederatedDataModule(source, IIDPartitioner(), num_clients=4, batch_size=10)
    data.setup()
    x, y = data.gather(torch.tensor([[0, 7], [150, 199]]))
    assert x.shape == (2, 2, 3, 64, 64)
    assert x.dtype == torch.uint8
    assert x[:, :, :, 30, 40].tolist() == [[[0] * 3, [7] * 3], [[150] * 3, [199] * 3]]
    assert y.tolist() == [[0, 7], [150, 199]]
    x, y = data.gather_test(torch.tensor([0, 3]))
    assert (x[:, 0, 0, 0].tolist(), y.tolist()) == ([0, 150], [0, 150])
    assert data.classes is not None
    assert (len(data.classes), data.classes[7]) == (200, "n00000007")


def test_pixels_as_floats(written: Path) -> None:
    train, _ = TinyImageNetSource(str(written), in_memory=True).load()
    assert isinstance(train, TensorData)
    torch.testing.assert_close(train.inputs[150], torch.full((3, 64, 64), 150 / 255))


def test_workers_read_the_same_and_transforms_are_applied(written: Path) -> None:
    found = []
    for num_workers in (0, 1):
        data = FederatedDataModule(
            TinyImageNetSource(str(written), as_uint8=True),
            IIDPartitioner(),
            num_clients=4,
            train_transforms=[ToFloat(), RandomHorizontalFlip()],
            num_workers=num_workers,
        )
        data.setup()
        data.place(torch.device("cpu"), torch.float64)
        plan = [(torch.tensor([[5, 6]]), torch.tensor([[1, 2]]))] * 3
        found.append([batch[0] for batch in data.batches(plan)])
        data.teardown()
    assert all(one.equal(other) for one, other in zip(*found, strict=True))
    assert found[0][0][0, :, 0, 0, 0].tolist() == pytest.approx([5 / 255, 6 / 255])


def test_missing_data_is_told_at_once(tmp_path: Path) -> None:
    start = time.perf_counter()
    with pytest.raises(FileNotFoundError, match=r"is not at '.*/tiny-imagenet-200': there is no 'train'. Get http://"):
        TinyImageNetSource(str(tmp_path)).check()
    assert time.perf_counter() - start < 1


def test_a_folder_that_is_not_whole(root: Path) -> None:
    folder = root / "tiny-imagenet-200"
    source = TinyImageNetSource(str(root))
    annotations = folder / "val" / "val_annotations.txt"
    lines = annotations.read_text()
    for text, message in [
        (lines + "val_9.JPEG\tn00000001\t0\n", r"Line 5 of .* names 'val_9\.JPEG', which is not there"),
        (lines.replace("n00000050", "n99"), r"Line 2 of .* names the class 'n99', which is not in train"),
        ("", r"val_annotations\.txt' is empty"),
    ]:
        annotations.write_text(text)
        with pytest.raises(ValueError, match=message):
            source.load()
    (root / TRAIN).write_bytes(b"")
    with pytest.raises(ValueError, match=r"n00000007/images' has 'n00000007_0\.JPEG', which is empty"):
        source.load()
    (root / TRAIN).unlink()
    with pytest.raises(ValueError, match=r"n00000007/images' has no file '\*\.JPEG'"):
        source.load()
    (root / TRAIN).parent.rmdir()
    with pytest.raises(ValueError, match=r"no folder '.*n00000007/images'"):
        source.load()
    (root / TRAIN).parent.parent.rmdir()
    with pytest.raises(ValueError, match="has 199 folders of classes, not 200"):
        source.load()


@pytest.mark.parametrize("damage", ["cut", "text", "size"])
def test_a_damaged_image_is_named(root: Path, damage: str) -> None:
    path = root / TRAIN
    if damage == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif damage == "text":
        path.write_text("no image")
    else:
        write_jpeg(path, 7, side=32)
    said = "has 32 x 32 pixels, not 64 x 64" if damage == "size" else "is damaged, or missing: "
    data = FederatedDataModule(TinyImageNetSource(str(root)), IIDPartitioner(), num_clients=4)
    data.setup()
    with pytest.raises(ValueError, match=rf"The image '.*n00000007_0\.JPEG' {said}"):
        data.gather(torch.tensor([[7]]))


READS_ALL = """
import resource, sys
import torch
from lfl.data import FederatedDataModule, IIDPartitioner, TinyImageNetSource, ToFloat
import PIL.Image

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak()
source = TinyImageNetSource(sys.argv[1], as_uint8=True)
data = FederatedDataModule(source, IIDPartitioner(), num_clients=10, train_transforms=[ToFloat()])
data.setup()
for _ in data.batches((chunk, None) for chunk in torch.randperm(int(data.client_sizes.sum())).split(50)):
    pass
print(peak() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_images(tmp_path: Path) -> None:
    """A quarter of a GB of pixels, which are read once each, in 60 MB."""
    write_tiny_imagenet(tmp_path, per_class=100)
    done = subprocess.run([sys.executable, "-c", READS_ALL, tmp_path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60 * 2**20
