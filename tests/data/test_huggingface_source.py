"""Data sets of Hugging Face from folders: columns, classes, groups, and what is said of what is missing."""

import re
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from lfl.data import (
    FederatedDataModule,
    HuggingFaceSource,
    IIDPartitioner,
    NaturalPartitioner,
    Normalize,
    PadCollate,
    ShardPartitioner,
)

FEATURES = datasets.Features(
    {
        "text": datasets.Value("string"),
        "ids": [datasets.Value("int64")],
        "pixels": [[datasets.Value("float32")]],
        "label": datasets.ClassLabel(names=["no", "maybe", "yes"]),
        "mood": datasets.Value("string"),
        "user": datasets.Value("string"),
    }
)


def rows(count: int) -> datasets.Dataset:
    """Row i has the label i modulo 3, the user i modulo 4, and i modulo 5 + 1 ids."""
    table = [
        {
            "text": f"text {i}",
            "ids": [i] * (i % 5 + 1),
            "pixels": [[i, 0.5], [1.0, 2.0]],
            "label": i % 3,
            "mood": ["sad", "glad"][i % 2],
            "user": f"u{i % 4}",
        }
        for i in range(count)
    ]
    return datasets.Dataset.from_list(table, features=FEATURES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hf")
    datasets.disable_progress_bars()
    datasets.DatasetDict(train=rows(24), test=rows(8)).save_to_disk(str(path / "both"))
    rows(20).save_to_disk(str(path / "single"))
    return path


def module_of(source: HuggingFaceSource, partitioner: Any = None, num_clients: int = 4, **options: Any) -> Any:
    data = FederatedDataModule(source, partitioner or ShardPartitioner(), num_clients=num_clients, **options)
    data.setup("fit")
    return data


BOTH = pytest.mark.parametrize("in_memory", [True, False])


@BOTH
def test_columns_become_batches_and_class_labels_classes(folder: Path, in_memory: bool) -> None:
    source = HuggingFaceSource(str(folder / "both"), columns=["text", "pixels"], in_memory=in_memory)
    assert source.num_classes == 3
    data = module_of(source)
    batch = data.gather(torch.tensor([[3, 4]]))
    assert set(batch) == {"text", "pixels", "label"}
    assert batch["text"] == [["text 3", "text 4"]]
    assert batch["pixels"][0, 1].tolist() == [[4, 0.5], [1, 2]]
    assert (batch["label"].tolist(), batch["label"].dtype) == ([[0, 1]], torch.int64)
    assert data.classes == ("no", "maybe", "yes")
    assert data.gather_test(torch.tensor([7]))["label"].tolist() == [1]
    assert data.describe()["train_examples"] == 24


@BOTH
def test_users_are_clients_and_sequences_are_padded(folder: Path, in_memory: bool) -> None:
    collate = PadCollate({"ids": -1}, multiple_of=4)
    source = HuggingFaceSource(
        str(folder / "both"), groups="user", columns=["ids"], collate_fn=collate, in_memory=in_memory
    )
    data = module_of(source, NaturalPartitioner())
    assert data.users == (("u0",), ("u1",), ("u2",), ("u3",))
    assert data.partition.client(1).tolist() == [1, 5, 9, 13, 17, 21]
    assert data.gather(torch.tensor([[1, 5]]))["ids"].tolist() == [[[1, 1, -1, -1], [5, -1, -1, -1]]]
    assert data.partition.test.sizes.tolist() == [2, 2, 2, 2]


def test_workers_read_rows(folder: Path) -> None:
    plan = [(torch.tensor([[i, i + 1]]), None) for i in range(0, 8, 2)]
    found = []
    for num_workers in (0, 1):
        source = HuggingFaceSource(str(folder / "both"), columns=["pixels"], in_memory=False)
        data = module_of(source, num_workers=num_workers)
        found.append([batch["pixels"] for batch in data.batches(iter(plan))])
        data.teardown("fit")
    assert all(map(torch.equal, *found))


@BOTH
def test_names_are_classes_and_targets_need_not_be_there(folder: Path, in_memory: bool) -> None:
    source = HuggingFaceSource(str(folder / "both"), target="mood", columns=["pixels"], in_memory=in_memory)
    assert source.num_classes == 2
    data = module_of(source)
    assert data.classes == ("glad", "sad")
    assert data.gather(torch.tensor([0, 1]))["mood"].tolist() == [1, 0]
    none = HuggingFaceSource(str(folder / "both"), target=None, columns=["pixels"], in_memory=in_memory)
    assert none.num_classes == 0
    assert set(module_of(none, IIDPartitioner()).gather(torch.tensor([0]))) == {"pixels"}


def test_a_single_split_is_divided_alike_each_time(folder: Path) -> None:
    sources = [HuggingFaceSource(str(folder / "single"), columns=["text"], test_fraction=0.25) for _ in range(2)]
    texts = [[split.parts["text"] for split in source.load()] for source in sources]
    assert texts[0] == texts[1]
    train, test = texts[0]
    assert (len(train), len(test)) == (15, 5)
    assert sorted([*train, *test]) == sorted(f"text {i}" for i in range(20))
    held = HuggingFaceSource(str(folder / "both"), columns=["text"], test_split=None)
    assert [len(part) for part in held.load()] == [19, 5]


def test_transforms_are_for_the_input(folder: Path) -> None:
    source = HuggingFaceSource(str(folder / "both"), columns=["pixels"], input="pixels")
    data = module_of(source, train_transforms=[Normalize([0.0, 0.0], [2.0, 2.0])])
    assert data.gather(torch.tensor([4]))["pixels"].tolist() == [[[2, 0.25], [0.5, 1]]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "labels"}, "`target='labels'` is no column of '{both}', which has: text, ids, pixels, label, mood"),
        ({"groups": "writer"}, "`groups='writer'` is no column of"),
        ({"columns": ["text", "x"]}, "`columns='x'` is no column of"),
        ({"split": "training"}, "`split='training'` is no split of '{both}', which has: train, test."),
        ({"test_split": "validation"}, "`test_split='validation'` is no split of"),
        ({"columns": ["ids"]}, "Item 1 of `train` of HuggingFaceSource has a part 'ids' of shape [2], item 0 of [1]"),
    ],
)
def test_what_does_not_fit_is_one_line(folder: Path, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message.format(both=folder / "both"))) as refused:
        module_of(HuggingFaceSource(str(folder / "both"), **options))
    assert "\n" not in str(refused.value)


def test_missing_data_says_where_it_was_looked_for_and_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError) as missing:
        HuggingFaceSource("nobody/nothing", "part").check()
    said = str(missing.value)
    assert f"There is no data set at {str(tmp_path / 'nobody/nothing')!r}" in said
    assert "python -c \"import datasets; datasets.load_dataset('nobody/nothing', 'part')\"" in said
    for path in ("./data/counting", str(tmp_path / "data/counting"), "a/b/c"):  # no names on the hub
        with pytest.raises(FileNotFoundError) as missing:
            HuggingFaceSource(path).check()
        said = str(missing.value)
        assert said.startswith(
            f"There is no data set at {str((tmp_path / path).resolve())!r}: write one there by `save"
        )
        assert "download" not in said
    (tmp_path / "other").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no data set that `save_to_disk` wrote: there is neither"):
        HuggingFaceSource("other").check()


def test_the_package_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs the package `datasets`: pip install 'lfl\[huggingface\]'\."):
        HuggingFaceSource("anywhere").check()


@pytest.mark.parametrize("share", [-0.2, 0, 1, 2])
def test_a_share_that_cannot_be_a_test_set(share: float) -> None:
    with pytest.raises(ValueError, match=f"`test_fraction={share}` of HuggingFaceSource must be a number greater than"):
        HuggingFaceSource("folder", test_split=None, test_fraction=share)
