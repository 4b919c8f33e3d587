"""The base class: hooks that are there or not, and stacks without a meaning."""

from pathlib import Path
from typing import Any

import pytest
from worlds import HEAD, mlp, train

from lfl.callback import FederatedCallback, check_gradient, check_stack, overrides, refuse_lossy_codecs
from lfl.callbacks import SSF, FedSub, PersonalParameters, Scaffold, Sign
from lfl.client.layout import ParameterLayout
from lfl.engine import LocalPhase

LAYOUT = ParameterLayout.of_parameters(mlp())


class Unique(FederatedCallback):
    is_unique = True


class Whole(FederatedCallback):
    whole_model = True


class Choosy(FederatedCallback):
    def check(self, layout: ParameterLayout) -> None:
        raise ValueError(f"D={layout.dim}")

    def check_stack(self, stack: list[FederatedCallback]) -> None:
        raise AssertionError("The layout is checked before.")


def test_coordinates_move_all_parameters(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="SSF moves all parameters by coordinates"):
        train([SSF()], tmp_path, local_phases=[LocalPhase(HEAD)])


def test_a_hook_is_there_if_some_class_of_ones_own_has_it() -> None:
    class Later(Whole):
        pass

    class Encoding(Later):
        def encode(self, cohort, payload):
            return payload

    class Latest(Encoding):
        pass

    assert overrides(Latest(), "encode")
    assert not overrides(Later(), "encode")
    assert not overrides(Latest(), "decode")


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ([SSF(), FedSub()], "SSF and FedSub both want the local optimizer to run on their own coordinates"),
        ([Unique(), Scaffold(), Unique()], "`callbacks` has two Unique, which would get into each other's way"),
        ([Whole(), PersonalParameters(HEAD)], "PersonalParameters and Whole have no meaning together"),
        ([Choosy()], "D=832"),
    ],
)
def test_stacks_that_do_not_go_together(stack: list[FederatedCallback], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_stack(stack, LAYOUT, has_frozen_phases=False)


def test_stacks_that_do() -> None:
    check_stack([Unique(), Whole(), Scaffold(), Sign()], LAYOUT, has_frozen_phases=True)
    refuse_lossy_codecs("Mine", [Scaffold()])
    with pytest.raises(ValueError, match="Mine and Sign have no meaning together"):
        refuse_lossy_codecs("Mine", [Scaffold(), Sign()])


@pytest.mark.parametrize(
    ("gradient", "found"), [(lambda params: params, "got one of \\(params\\)"), (None, "got None"), (3, "got 3")]
)
def test_what_is_no_gradient_function_is_named(gradient: Any, found: str) -> None:
    with pytest.raises(TypeError, match=f"`Scaffold.wrap_gradient` must return a function of .*, {found}"):
        check_gradient(Scaffold(), gradient)
    check_gradient(Scaffold(), lambda params, step: params)


def test_the_base_does_nothing() -> None:
    base, gradient, payload = FederatedCallback(), object(), object()
    assert base.wrap_gradient(None, gradient) is gradient  # type: ignore[arg-type]
    assert base.encode(None, payload) is payload  # type: ignore[arg-type]
    assert base.decode(None, payload) is payload  # type: ignore[arg-type]
    assert base.client_loss(None, payload) is payload  # type: ignore[arg-type]
    assert base.coordinates(None) is None  # type: ignore[arg-type]
    assert base.ends_encoding(None) is False  # type: ignore[arg-type]
    assert base.linear
    assert (base.is_unique, base.observes, base.whole_model) == (False, False, False)
