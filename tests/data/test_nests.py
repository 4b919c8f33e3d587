"""Nests: their leaves stacked, strings along for the ride, and what torch's walks make of them."""

import pickle
import re
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from lfl.data.columns import DataError
from lfl.data.items import differing
from lfl.data.nests import (
    Path,
    Riders,
    Unread,
    as_batch,
    joined,
    leaves_of,
    part_of,
    path_to,
    stacked,
    with_part,
    without_riders,
)

Pair = namedtuple("Pair", ["left", "right"])
ITEMS = [
    {
        "ids": [i, i + 1],
        "pair": Pair(torch.tensor([float(i)]), np.float32(i)),
        "text": f"t{i}",
        "more": ({"n": i}, None, True),
        "rows": [[1, 2], [3, i]],
    }
    for i in range(4)
]


def misfit(path: Path, values: list[Any]) -> DataError:
    return differing(values, range(len(values)), "mine", path)


def test_every_leaf_is_stacked_in_the_structure_of_the_item() -> None:
    batch = stacked(ITEMS, misfit)
    assert batch["ids"].tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert isinstance(batch["pair"], Pair)
    assert batch["pair"].left.tolist() == [[0.0], [1.0], [2.0], [3.0]]
    assert (batch["pair"].right.dtype, batch["pair"].right.tolist()) == (torch.float32, [0, 1, 2, 3])
    assert batch["text"] == ["t0", "t1", "t2", "t3"]
    assert batch["more"][0]["n"].tolist() == [0, 1, 2, 3]
    assert batch["more"][1] == [None] * 4
    assert batch["more"][2].dtype == torch.bool
    assert batch["rows"].shape == (4, 2, 2)
    assert all(isinstance(riders, Riders) for riders in (batch["text"], batch["more"][1]))


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([{"a": [1]}, {"a": [1, 2]}], "Item 1 of mine has a part 'a' of shape [2], item 0 of [1]"),
        ([{"a": {"b": 1}}, {"a": {"b": "x"}}], "a part 'a.b' that is a str, item 0 one that is a int"),
        ([{"a": 1}, {"b": 1}], "a part that is a dict ['b'], item 0 one that is a dict ['a']"),
        ([(1, 2), (1, 2, 3)], "a part that is a tuple of 3, item 0 one that is a tuple of 2"),
        ([(torch.zeros(2), 1), (None, 1)], "a part that is a NoneType, item 0 one that is a Tensor"),
        ([{"a": {1}}, {"a": {1}}], "a part 'a' that is a set"),
    ],
)
def test_what_does_not_fit_is_named(items: list[Any], message: str) -> None:
    with pytest.raises(DataError) as refused:
        stacked(items, misfit)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_parts_are_found_and_replaced_by_name() -> None:
    item = {"a": (1, {"b": 2}), "x.y": 3}
    assert path_to(item, "a.1.b") == ("a", 1, "b")
    assert path_to(item, "x.y") == ("x.y",)
    assert path_to(("x", "y"), 1) == path_to(("x", "y"), "1") == (1,)
    assert path_to(item, "a.2") is path_to(item, "c") is path_to(torch.zeros(2), "a") is None
    changed = with_part(item, ("a", 1, "b"), 9)
    assert part_of(changed, ("a", 1, "b")) == 9
    assert item == {"a": (1, {"b": 2}), "x.y": 3}
    assert with_part(Pair(1, 2), (0,), 5) == Pair(5, 2)
    assert [path for path, _ in leaves_of(item)] == [("a", 0), ("a", 1, "b"), ("x.y",)]


def test_riders_are_indexed_as_tensors_are() -> None:
    """Whatever an engine does to a tensor [C, b], it can do to riders."""
    numbers = torch.arange(6).reshape(3, 2)
    riders = Riders("012345").shaped(torch.Size([3, 2]))
    rows = torch.tensor([2, 0])
    for index in (
        0,
        slice(1, None),
        (slice(0, 1), slice(None, 1)),
        (rows, slice(None)),
        rows,
        (1, 0),
        (2, slice(0, 1)),
    ):
        assert tree_of(riders[index]) == tree_map(str, numbers[index].tolist()), index
    assert tree_leaves({"a": riders, "b": numbers}) == [riders, numbers]
    assert type(pickle.loads(pickle.dumps(riders))[0]) is Riders
    assert joined([riders, riders]) == [*riders, *riders]


def tree_of(value: Any) -> Any:
    return [tree_of(entry) for entry in value] if isinstance(value, list) else value


def test_who_reads_riders_of_many_clients_is_told() -> None:
    batch = without_riders({"x": torch.ones(2, 3), "text": Riders([["a"], ["b"]])})
    assert vmap(lambda part: part["x"].sum())(batch).tolist() == [3, 3]
    for read in (len, list, bool, str, lambda text: text[0], lambda text: text == "a", lambda text: text.upper()):
        with pytest.raises(TypeError, match="it reads strings of its batch, which only one client at a time can"):
            vmap(lambda part, read=read: part["x"].sum() * bool(read(part["text"])))(batch)
    assert isinstance(batch["text"], Unread)
    for plain in ((torch.ones(1), torch.ones(1)), {"x": torch.ones(1)}, torch.ones(1)):
        assert without_riders(plain) is plain


def test_what_a_collate_function_returns_becomes_a_batch() -> None:
    class Encoding(dict[str, Any]):
        pass

    made = Encoding(ids=np.ones((2, 3)), length=[3, 2], text=["a", "b"], nested=[torch.zeros(2), torch.ones(2)])
    batch = as_batch(made, 2)
    assert type(batch) is dict
    assert batch["ids"].shape == (2, 3)
    assert batch["length"].tolist() == [3, 2]
    assert isinstance(batch["text"], Riders)
    assert batch["nested"][1].tolist() == [1, 1]
    for wrong, said in (({"n": torch.tensor(3)}, "a part 'n' of shape []"), ((object(),), "a part that is a object")):
        with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
            as_batch(wrong, 2)
