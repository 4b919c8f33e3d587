"""What must be equal for a run to be resumed."""

from pathlib import Path

import pytest
import torch
from jsonargparse.typing import PositiveInt

from lfl.callbacks import SSF, Proximal
from lfl.participation import UniformParticipation
from lfl.storage.checkpoint_file import CheckpointError
from lfl.storage.fingerprint import check_resumable, describe, describe_optimizer, differences, is_describable
from lfl.subspace import LayerwiseSubspace


def test_objects_are_their_class_and_arguments() -> None:
    subspace = {"class": "lfl.subspace.layerwise.LayerwiseSubspace", "rank": 0.5, "whole_vectors": True}
    found = describe(SSF(LayerwiseSubspace(0.5), refresh_every=3))
    assert found["class"] == "lfl.callbacks.ssf.SSF"
    assert (found["subspace"], found["refresh_every"]) == (subspace, 3)
    assert describe([Proximal(0.5), None, {1: (True, "a")}]) == [
        {"class": "lfl.callbacks.proximal.Proximal", "mu": 0.5},
        None,
        {"1": [True, "a"]},
    ]


def test_numbers_are_plain_ones() -> None:
    """A checkpoint cannot hold jsonargparse's subclasses."""
    found = describe(PositiveInt(3))
    assert (found, type(found)) == (3, int)
    assert type(describe(True)) is bool


@pytest.mark.parametrize("value", [torch.ones(1), torch.Generator(), print, [torch.ones(1)], {"a": torch.ones(1)}])
def test_what_cannot_be_told(value: object) -> None:
    assert not is_describable(value)


def test_differences_are_named_with_both_values() -> None:
    saved = {"a": {"class": "x.A", "n": 1, "m": 2}, "list": [1, 2], "only": 3}
    now = {"a": {"class": "x.A", "n": 5, "m": 2}, "list": [1, 7], "new": [4]}
    assert differences(saved, saved) == []
    assert differences(saved, now) == [
        "a.n: 1 then, 5 now",
        "list[1]: 2 then, 7 now",
        "new: None then, [4] now",
        "only: 3 then, None now",
    ]
    assert differences({"a": {"class": "x.A"}}, {"a": {"class": "y.B", "n": 1}}) == ["a: A then, B now"]
    assert differences({"a": "x" * 100}, {"a": 1}) == [f"a: '{'x' * 76}... then, 1 now"]


def test_where_the_data_lies_does_not_matter() -> None:
    path = Path("last.ckpt")
    check_resumable({"data": {"source": {"root": "a", "n": 1}}}, {"data": {"source": {"root": "b", "n": 1}}}, path)
    saved, now = ({"p": describe(UniformParticipation(count))} for count in (3, 4))
    with pytest.raises(CheckpointError, match=r"Cannot resume `last.ckpt` with .*p.clients_per_round: 3 then, 4 now"):
        check_resumable(saved, now, path)


def test_optimizers_are_their_settings() -> None:
    found = describe_optimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5, momentum=0.25))
    assert found["class"] == "SGD"
    (group,) = found["groups"]
    assert (group["lr"], group["momentum"], group["nesterov"]) == (0.5, 0.25, False)
    assert "params" not in group
