"""FEMNIST and Shakespeare in LEAF's files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from published_files import write_leaf

from lfl.data import FederatedDataModule, LEAFSource, NaturalPartitioner
from lfl.data.leaf_source import ALPHABET


def write(path: Path, data: dict[str, Any], changed: dict[str, Any] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(user["y"]) for user in data.values()]
    content = {"users": list(data), "num_samples": counts, "user_data": data, **(changed or {})}
    path.write_text(json.dumps(content))


def image(value: float) -> list[float]:
    return [value / 255] * 784


def write_writers(root: Path) -> Path:
    folder = root / "femnist" / "data"
    train = {"b": {"x": [image(0), image(255)], "y": [3, 61]}, "a": {"x": [image(7)], "y": [36]}}
    write(folder / "train" / "all_data_0_train_9.json", train)
    write(folder / "train" / "all_data_1_train_9.json", {"c": {"x": [image(9)], "y": [37]}})
    write(folder / "test" / "all_data_0_test_9.json", {"a": {"x": [image(1)], "y": [36]}, "b": {"x": [], "y": []}})
    return folder


def test_images_of_writers_in_several_files(tmp_path: Path) -> None:
    write_writers(tmp_path)
    source = LEAFSource("femnist", root=str(tmp_path), as_uint8=True)
    source.check()
    train, test = source.load()
    assert train.inputs.shape == (4, 1, 28, 28)
    assert train.inputs[:, 0, 5, 5].tolist() == [0, 255, 7, 9]
    assert (train.targets.tolist(), test.targets.tolist()) == ([3, 61, 36, 37], [36])
    assert train.users == test.users == ("a", "b", "c")
    assert (train.groups.tolist(), test.groups.tolist()) == ([1, 1, 0, 2], [0])
    scaled = LEAFSource("femnist", root=str(tmp_path)).load()[0].inputs
    torch.testing.assert_close(scaled, train.inputs.float() / 255, rtol=0, atol=0)


def test_some_classes_alone(tmp_path: Path) -> None:
    write_writers(tmp_path)
    source = LEAFSource("femnist", root=str(tmp_path), classes=[61, 36])
    train, test = source.load()
    assert (train.targets.tolist(), test.targets.tolist(), source.num_classes) == ([1, 0], [0], 2)
    assert train.users == ("a", "b")
    with pytest.raises(ValueError, match=r"No user of .* has an example of `classes=\[5\]`"):
        LEAFSource("femnist", root=str(tmp_path), classes=[5]).load()
    with pytest.raises(ValueError, match=r"`classes=\[62\]` of LEAFSource must be labels of femnist, 0 to 61"):
        LEAFSource("femnist", classes=[62])


def test_characters_and_the_one_that_comes_next(tmp_path: Path) -> None:
    text = "To be, or not to be: that is the question:\nWhether 'tis nobler in the mind to su"
    folder = tmp_path / "shakespeare" / "data"
    for part in ("train", "test"):
        write(folder / part / "data.json", {"HAMLET": {"x": [text, text[::-1]], "y": ["u", "}"]}})
    source = LEAFSource("shakespeare", root=str(tmp_path))
    train, _ = source.load()
    assert "".join(ALPHABET[i] for i in train.inputs[0].tolist()) == text
    assert train.inputs.shape == (2, 80)
    assert [ALPHABET[i] for i in train.targets.tolist()] == ["u", "}"]
    assert source.num_classes == 80


def test_clients_are_users_and_are_tested_on_their_own_examples(tmp_path: Path) -> None:
    write_leaf(tmp_path, "shakespeare", users=3)
    data = FederatedDataModule(LEAFSource("shakespeare", str(tmp_path)), NaturalPartitioner(), num_clients=3)
    data.setup()
    assert data.users == (("user 0",), ("user 1",), ("user 2",))
    assert data.client_sizes.tolist() == [8, 9, 10]
    assert data.client_test_sizes.tolist() == [2, 2, 2]


def test_missing_files_are_told_with_the_way_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"femnist is not at '.*/femnist/data/train'.*preprocess\.sh -s niid"):
        LEAFSource("femnist", root=str(tmp_path)).check()
    write_writers(tmp_path)
    (tmp_path / "femnist" / "data" / "test" / "all_data_0_test_9.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"femnist is not at '.*/femnist/data/test'"):
        LEAFSource("femnist", root=str(tmp_path)).check()
    with pytest.raises(ValueError, match=r"`dataset='celeba'` of LEAFSource must be one of"):
        LEAFSource("celeba")  # type: ignore[arg-type]


ONE = {"x": [image(1)], "y": [2]}


@pytest.mark.parametrize(
    ("users", "changed", "message"),
    [
        ({"u": ONE}, {"users": ["u", "v"], "num_samples": [1, 1]}, r"User 'v' of '.*x\.json' has no data"),
        ({"u": ONE}, {"num_samples": [2]}, r"User 'u' of '.*x\.json' has 1 examples, not 2"),
        ({"u": {"x": [image(1)] * 2, "y": [2]}}, {}, r"User 'u' of '.*x\.json' must have 'x' and 'y', equally long"),
        ({"u": {"x": [[0.5] * 7], "y": [2]}}, {}, r"User 'u' of .* x of 784 numbers from 0 to 1"),
        ({"u": {"x": [image(256)], "y": [2]}}, {}, r"User 'u' of .* x of 784 numbers from 0 to 1"),
        ({"u": {"x": [image(1)], "y": [62]}}, {}, r"User 'u' of .* something else than the labels 0 to 61"),
        ({"u": {"x": [image(1)], "y": [257]}}, {}, r"User 'u' of .* something else than the labels 0 to 61"),
        ({"a": ONE}, {}, r"x\.json' has the user 'a', whom another file beside it has too"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, users: dict[str, Any], changed: dict[str, Any], message: str) -> None:
    folder = write_writers(tmp_path)
    write(folder / "train" / "x.json", users, changed)
    with pytest.raises(ValueError, match=message):
        LEAFSource("femnist", root=str(tmp_path)).load()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"users": [', r"'.*/x\.json' is no JSON, or damaged: .* Write it anew with LEAF"),
        ("[1, 2]", r"'.*/x\.json' has no 'users': it is no file of LEAF"),
        ('{"users": [], "num_samples": []}', r"has no 'user_data'"),
    ],
)
def test_files_that_are_not_leafs(tmp_path: Path, content: str, message: str) -> None:
    (write_writers(tmp_path) / "train" / "x.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        LEAFSource("femnist", root=str(tmp_path)).load()


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (["a" * 79], ["b"], "x of 80 characters, and y one each"),
        (["a" * 80], ["bc"], "x of 80 characters, and y one each"),
        (["a" * 79 + "ä"], ["b"], "something else than the characters of LEAF's alphabet"),
        (["a" * 80], ["*"], "something else than the characters of LEAF's alphabet"),
        ([5], ["b"], "x of 80 characters, and y one each"),
    ],
)
def test_texts_that_are_not_leafs(tmp_path: Path, x: list[Any], y: list[str], message: str) -> None:
    for part in ("train", "test"):
        write(tmp_path / "shakespeare" / "data" / part / "x.json", {"ROMEO": {"x": x, "y": y}})
    with pytest.raises(ValueError, match=message):
        LEAFSource("shakespeare", root=str(tmp_path)).load()
