"""Partitions that people write by hand or with other tools."""

import json
from pathlib import Path
from typing import Any

import pytest

from lfl.data import Partition
from lfl.data.partition_file import PartitionError, check_there, read_csv, read_json, write_json


def json_file(folder: Path, content: Any) -> Path:
    (folder / "p.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder / "p.json"


def csv_file(folder: Path, content: str) -> Path:
    (folder / "p.csv").write_text(content)
    return folder / "p.csv"


@pytest.mark.parametrize(
    ("content", "test"),
    [
        ({"0": [3, 1], "1": [0]}, [[], []]),
        ({"1": [0], "0": [3, 1]}, [[], []]),
        ([[3, 1], [0]], [[], []]),
        ({"train": {"0": [3, 1], "1": [0]}, "test": {"1": [5]}}, [[], [5]]),
        ({"train": [[3, 1], [0]], "test": [[4], [5]]}, [[4], [5]]),
    ],
)
def test_json(tmp_path: Path, content: Any, test: Any) -> None:
    found = read_json(json_file(tmp_path, content))
    assert (found.train, found.test, found.ids) == ([[3, 1], [0]], test, None)


@pytest.mark.parametrize(
    ("content", "test"),
    [
        ("0,3\n0,1\n1,0\n", [[], []]),
        ("client,index\n0,3\n1,0\n0,1\n", [[], []]),
        ("\ufeffIndex, Client\n3,0\n1,0\n\n0,1", [[], []]),
        ("client,index,split\n0,3,train\n1,5,test\n0,1,train\n1,0,train\n", [[], [5]]),
    ],
)
def test_csv(tmp_path: Path, content: str, test: Any) -> None:
    found = read_csv(csv_file(tmp_path, content))
    assert (found.train, found.test, found.ids) == ([[3, 1], [0]], test, None)


def test_clients_may_have_ids(tmp_path: Path) -> None:
    """They are numbered in ascending order: numbers as numbers, names as names."""
    loaded = Partition.load(json_file(tmp_path, {"100": [2], "20": [0, 1]}))
    assert (loaded.users, loaded.client(0).tolist(), loaded.sizes.tolist()) == (((20,), (100,)), [0, 1], [2, 1])
    loaded = Partition.load(csv_file(tmp_path, "bob,2\nalice,0\nalice,1\n"))
    assert (loaded.users, loaded.client(1).tolist()) == ((("alice",), ("bob",)), [2])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON, or damaged: Expecting property name"),
        ("", "is no JSON, or damaged"),
        ("5", "holds no partition: it should be {client:"),
        ({"0": 3}, "holds no partition"),
        ({"0": ["a"]}, "Client 0 of the partition .* has the position 'a': positions are whole numbers"),
        ({"0": [1.5]}, r"has the position '1\.5'"),
        ({"0": [True]}, "has the position 'True'"),
        ({}, "has no clients"),
        ({"train": {"a": [0]}, "test": {"b": [1]}}, "Client b of the partition .* has test but no training examples"),
    ],
)
def test_foreign_json_is_one_line(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(PartitionError, match=message) as refused:
        read_json(json_file(tmp_path, content))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no clients"),
        ("a,b\nc,d\n", "Row 1 of the partition .* is 'a,b': it must be client,index or"),
        ("client,index\n0,1\n0\n", "Row 3 of the partition .* is '0'"),
        ("client,index,split\n0,1,val\n", "Row 2 of the partition .* is '0,1,val'"),
        ("0,1.5\n", r"is '0,1\.5'"),
    ],
)
def test_foreign_csv_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(PartitionError, match=message) as refused:
        read_csv(csv_file(tmp_path, content))
    assert "\n" not in str(refused.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    for name, read in (("p.json", read_json), ("p.csv", read_csv)):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00\x80")
        with pytest.raises(PartitionError, match="or damaged"):
            read(tmp_path / name)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "partition.json"
    write_json(path, [[3, 1], [], [0]], [[], [2], []])
    found = read_json(path)
    assert (found.train, found.test, found.ids) == ([[3, 1], [], [0]], [[], [2], []], None)
    assert [file.name for file in tmp_path.iterdir()] == ["partition.json"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "there.csv").touch()
    check_there(tmp_path / "there.csv")
    with pytest.raises(
        FileNotFoundError, match=r"There is no partition at '.*none\.csv'; `Partition\.save` writes one"
    ):
        check_there(tmp_path / "none.csv")
