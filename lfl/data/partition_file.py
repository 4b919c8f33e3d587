"""Partition files that people write: JSON and CSV.

JSON is ``{client: [positions]}``, or ``{"train": {client: [positions]}, "test": {client: [positions]}}``; also with
lists of lists instead of dictionaries. CSV has the columns ``client`` and ``index``, and perhaps ``split`` (train or
test). Clients are numbers from 0, without gaps, or ids (names, or any numbers), which are numbered in ascending order.
"""

import csv
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from lfl.storage.files import write_file

_HEADERS = ({"client", "index"}, {"client", "index", "split"})
ClientId: TypeAlias = int | str


class PartitionError(ValueError):
    """A partition file that cannot be used. The message is one line: which file, what is wrong, what to do."""


@dataclass
class WrittenPartition:
    """The content of such a file.

    Attributes:
        train: positions of training examples of each client.
        test: likewise of test examples; all empty if the file says nothing about them.
        ids: the client's id in the file, where clients are not just numbered.
    """

    train: list[list[int]]
    test: list[list[int]]
    ids: list[ClientId] | None = field(default=None)


def check_there(path: str | os.PathLike[str]) -> None:
    """Raise FileNotFoundError, with how to get it, where there is no file of a partition."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no partition at {str(path)!r}; `Partition.save` writes one.")


def read_json(path: Path) -> WrittenPartition:
    """Read a JSON file.

    Raises:
        PartitionError: it is damaged, or no partition.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON, or of UTF-8
        raise PartitionError(f"The partition {str(path)!r} is no JSON, or damaged: {error}.") from error
    has_splits = isinstance(found, dict) and set(found) <= {"train", "test"} and "train" in found
    splits = found if has_splits else {"train": found}
    return _numbered(path, *(_by_client(path, splits.get(name, {})) for name in ("train", "test")))


def write_json(path: Path, train: list[list[int]], test: list[list[int]]) -> None:
    """Write what ``read_json`` reads, clients by their numbers; an older file stays until the new one is complete.

    Raises:
        OSError: the file cannot be written.
    """
    splits = {
        name: {str(client): positions for client, positions in enumerate(sets)}
        for name, sets in (("train", train), ("test", test))
    }
    write_file(path, json.dumps(splits))


def read_csv(path: Path) -> WrittenPartition:
    """Read a CSV file with a header or, for ``client,index``, without one.

    Raises:
        PartitionError: it is damaged, or no partition.
    """
    try:
        rows = [row for row in csv.reader(path.read_text(encoding="utf-8-sig").splitlines()) if row]
    except (ValueError, csv.Error) as error:
        raise PartitionError(f"The partition {str(path)!r} is no CSV, or damaged: {error}.") from error
    names = [name.strip().lower() for name in rows[0]] if rows else []
    has_header = set(names) in _HEADERS
    names = names if has_header else ["client", "index"]
    splits: dict[str, dict[Any, list[int]]] = {"train": {}, "test": {}}
    for line, row in enumerate(rows[has_header:], 1 + has_header):
        entry = dict(zip(names, (value.strip() for value in row), strict=False))
        split = entry.get("split", "train")
        if len(row) != len(names) or not _is_whole(entry["index"]) or split not in splits:
            raise PartitionError(
                f"Row {line} of the partition {str(path)!r} is {','.join(row)[:60]!r}: it must be client,index or, "
                "with a header, client,index,split (train or test)."
            )
        splits[split].setdefault(entry["client"], []).append(int(entry["index"]))
    return _numbered(path, splits["train"], splits["test"])


def _by_client(path: Path, lists: Any) -> dict[Any, list[int]]:
    if isinstance(lists, list):
        lists = dict(enumerate(lists))
    is_of_lists = isinstance(lists, dict) and all(isinstance(positions, list) for positions in lists.values())
    if not is_of_lists:
        raise PartitionError(
            f"{str(path)!r} holds no partition: it should be {{client: [positions]}}, or "
            '{"train": {client: [positions]}, "test": {client: [positions]}}.'
        )
    for client, positions in lists.items():
        wrong = next((position for position in positions if type(position) is not int), None)
        if wrong is not None:
            raise PartitionError(
                f"Client {client} of the partition {str(path)!r} has the position {str(wrong)[:40]!r}: positions are "
                "whole numbers, counted from 0."
            )
    return {str(client): positions for client, positions in lists.items()}


def _numbered(path: Path, train: dict[str, list[int]], test: dict[str, list[int]]) -> WrittenPartition:
    if not train:
        raise PartitionError(f"The partition {str(path)!r} has no clients.")
    stranger = next((client for client in test if client not in train), None)
    if stranger is not None:
        raise PartitionError(f"Client {stranger} of the partition {str(path)!r} has test but no training examples.")
    ids: list[ClientId] = [int(client) for client in train] if all(map(_is_whole, train)) else list(train)
    ids.sort()  # all are of one type
    train, test = ({str(int(c)) if _is_whole(c) else c: lists for c, lists in part.items()} for part in (train, test))
    is_numbered = ids == list(range(len(ids)))
    return WrittenPartition(
        [train[str(client)] for client in ids],
        [test.get(str(client), []) for client in ids],
        None if is_numbered else ids,
    )


def _is_whole(text: str) -> bool:
    return text.lstrip("-").isascii() and text.lstrip("-").isdigit()
