"""What checkpoints can hold: it comes back as what it was, and the rest is refused with its place and type."""

import random
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jsonargparse.typing import PositiveInt

from lfl.storage.checkpoint_file import load_checkpoint, save_atomically
from lfl.storage.plain import check_savable, from_plain, to_plain

Point = namedtuple("Point", "x y")


def through_a_file(value: Any, folder: Path) -> Any:
    save_atomically({"value": value}, folder / "a.ckpt")
    return load_checkpoint(folder / "a.ckpt")["value"]


@pytest.mark.parametrize(
    "value",
    [
        np.float64(0.1), np.float32(0.1), np.int64(-3), np.bool_(True), np.str_("a"), np.datetime64("2024-01-02"),
        np.complex64(1j), Counter({3: 2, 5: 1}), deque([1, 2.5], maxlen=3), deque(), frozenset({1, "a"}), {1, 2},
        range(1, 9, 2), OrderedDict(b=1, a=2), defaultdict(list, {"a": [1]}), defaultdict(None, a=1), (1, (2, [3])),
        {"a": [Counter({1: 1}), {"b": deque([np.float32(2)])}]}, {(1, 2): 3}, 1j, None, True, torch.float32,
    ],
)  # fmt: skip
def test_values_come_back_as_what_they_were(value: Any, tmp_path: Path) -> None:
    check_savable(value, "it")
    found = through_a_file(value, tmp_path)
    assert type(found) is type(value)
    assert found == value
    if isinstance(value, deque):
        assert found.maxlen == value.maxlen
    if isinstance(value, defaultdict):
        assert found.default_factory is value.default_factory


@pytest.mark.parametrize(
    "value",
    [
        np.array(0.5), np.arange(6).reshape(2, 3), np.arange(6.0).reshape(2, 3).T, np.empty((0, 2), np.uint16),
        np.array([True, False]), np.array(["a", "bc"]), np.float16([1, 2]),
    ],
)  # fmt: skip
def test_arrays_come_back_with_type_and_shape(value: np.ndarray, tmp_path: Path) -> None:
    found = through_a_file([value], tmp_path)[0]
    assert type(found) is np.ndarray
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert np.array_equal(found, value)
    if found.size and found.dtype.kind == "f":
        found += 1  # it can be written to


def test_named_tuples_keep_their_names(tmp_path: Path) -> None:
    found = through_a_file(Point(np.float64(1.5), [2]), tmp_path)
    assert found == Point(1.5, [2])
    assert (found.x, found.y) == (1.5, [2])


def test_numpy_keys_and_number_types_become_what_they_are_equal_to(tmp_path: Path) -> None:
    found = through_a_file({np.int64(3): 1, "k": PositiveInt(4), "s": {np.float64(2)}}, tmp_path)
    assert found == {3: 1, "k": 4, "s": {2.0}}
    assert type(found["k"]) is int


def test_states_of_generators_come_back(tmp_path: Path) -> None:
    numpys, pythons = np.random.Generator(np.random.MT19937(1)), random.Random(2)
    saved = through_a_file({"n": numpys.bit_generator.state, "p": pythons.getstate()}, tmp_path)
    expected = [numpys.random(), pythons.random()]
    numpys.bit_generator.state = saved["n"]
    pythons.setstate(saved["p"])
    assert [numpys.random(), pythons.random()] == expected


class Color(IntEnum):
    RED = 1


class Mine(torch.Tensor):
    pass


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, object()]}, r"^the state\['a'\]\[1\] is a builtins.object, which a checkpoint cannot hold: convert"),
        (np.random.default_rng(0), r"^the state is a numpy.random.*Generator, .*: keep `bit_generator.state` of it\.$"),
        (torch.Generator(), r"^the state is a torch._C.Generator, .*: keep `get_state\(\)` of it\.$"),
        ({"f": len}, r"^the state\['f'\] is a builtins.builtin_function_or_method, .*: leave it out of the state"),
        ({"c": Color.RED}, r"^the state\['c'\] is a .*Color"),
        ({Color.RED: 1}, r"^a key of the state is a .*Color"),
        ({frozenset({1}): 1}, r"^a key of the state is a builtins.frozenset"),
        (np.array([None]), "^the state is a numpy array of object"),
        (Point(1, object()), r"^the state.y is a builtins.object"),
        (torch.zeros(2).as_subclass(Mine), r"^the state is a .*Mine"),
        (LOOP, "^the state contains itself"),
    ],
)  # fmt: skip
def test_what_cannot_be_held_is_named(value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        check_savable(value, "the state")


def test_nothing_is_changed_on_the_way() -> None:
    state = {"a": np.float64(1), "t": torch.ones(2)}
    plain = to_plain(state, "it")
    assert type(state["a"]) is np.float64
    assert plain["t"] is state["t"]
    assert from_plain(plain)["t"] is state["t"]
