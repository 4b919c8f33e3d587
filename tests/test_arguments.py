"""Checks of arguments from Python, and defaults of one's own."""

import inspect
import math
import pydoc

import numpy as np
import pytest

from lfl.aggregation import MeanAggregator
from lfl.arguments import check_choice, check_number, count_of_share, fresh_default, lazy_default
from lfl.callbacks import SSF
from lfl.data import FederatedDataModule
from lfl.trainer import FederatedTrainer


def test_choices() -> None:
    check_choice("A", "mode", "on", ("on", "off"))
    with pytest.raises(ValueError, match=r"^`mode=up` of A must be one of on, off\.$"):
        check_choice("A", "mode", "up", ("on", "off"))
    with pytest.raises(ValueError, match=r"^`mode=up` must be one of on, off\.$"):
        check_choice("", "mode", "up", ("on", "off"))


@pytest.mark.parametrize(
    ("value", "limits", "message"),
    [
        (0, {"least": 1, "whole": True}, "`n=0` of A must be a whole number of at least 1."),
        (1.5, {"least": 1, "whole": True}, "`n=1.5` of A must be a whole number of at least 1."),
        (True, {"whole": True}, "`n=True` of A must be a whole number."),
        (1, {"above": 0, "below": 1}, "`n=1` of A must be a number greater than 0 and less than 1."),
        (0.0, {"above": 0}, "`n=0.0` of A must be a number greater than 0."),
        (math.nan, {}, "`n=nan` of A must be a number."),
        ("1", {}, "`n=1` of A must be a number."),
    ],
)
def test_numbers_that_cannot_be(value: object, limits: dict, message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the message is compared whole
        check_number("A", "n", value, **limits)
    assert str(refused.value) == message


def test_numbers_at_their_limits() -> None:
    check_number("A", "n", 1, least=1, whole=True)
    check_number("A", "n", 1e-300, above=0)
    check_number("A", "n", -3)
    check_number("A", "n", np.int64(1), least=1, whole=True)
    check_number("A", "n", np.float32(0.5), above=0)


def test_an_argument_of_the_trainer_has_no_owner() -> None:
    with pytest.raises(ValueError, match=r"^`n=0\.5` must be a whole number of at least 1\.$"):
        check_number("", "n", 0.5, least=1, whole=True)


def test_a_lazy_default_becomes_an_object_of_ones_own() -> None:
    default = lazy_default(MeanAggregator, weighting="uniform")
    first, second = fresh_default(default), fresh_default(default)
    assert type(first) is MeanAggregator
    assert first.weighting == "uniform"
    assert first is not second
    assert fresh_default(first) is first


@pytest.mark.parametrize(
    ("owner", "texts"),
    [
        (FederatedDataModule, ["MNIST5000()", "DirichletPartitioner()"]),
        (FederatedTrainer, ["UniformParticipation()", "MeanAggregator()", "Checkpointing()"]),
        (SSF, ["LayerwiseSubspace(rank=0.2)"]),
    ],
)
def test_help_shows_defaults_as_one_would_write_them(owner: type, texts: list[str]) -> None:
    """Sources and subspaces have texts of their own, which once took millions of characters here."""
    signature = str(inspect.signature(owner.__init__))
    assert len(signature) < 4000
    assert all(f"= {text}" in signature for text in texts)
    assert len(pydoc.render_doc(owner)) < 100_000


@pytest.mark.parametrize(("share", "count", "expected"), [(0.2, 10, 2), (0.07, 100, 7), (0.2, 11, 3), (0.0, 9, 0)])
def test_shares_are_rounded_up(share: float, count: int, expected: int) -> None:
    assert count_of_share(share, count) == expected
