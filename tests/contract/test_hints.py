"""What people who write a callback get wrong is said, with what would be right."""

from pathlib import Path
from typing import Any

import pytest
from worlds import mlp, ragged_data, train

from lfl import FederatedTrainer
from lfl.callbacks import FederatedCallback, PersonalParameters, Proximal


class Misspelt(FederatedCallback):
    def on_cohort_finish(self, cohort: Any) -> None:
        raise AssertionError("nobody calls this")


class OfLightning(FederatedCallback):
    def on_train_batch_end(self, *args: Any) -> None:
        raise AssertionError("nobody calls this")


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (Misspelt(), r"`Misspelt.on_cohort_finish` is never called.*did you mean `on_cohort_\w+`"),
        (OfLightning(), "`OfLightning.on_train_batch_end` is never called"),
    ],
)
def test_hooks_that_nobody_calls(callback: FederatedCallback, message: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=message):
        train([callback], tmp_path, max_rounds=1)


class Curious(FederatedCallback):
    def on_cohort_start(self, cohort: Any) -> None:
        _ = cohort.received["nonsense"]


def test_what_the_message_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match=r"no 'nonsense'; it has model.*`on_download` adds"):
        train([Curious()], tmp_path, max_rounds=1)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"aggregator": "uniform"}, r"`aggregator='uniform'` must be of the kind Aggregator, such as `MeanAggregator"),
        ({"participation": None}, r"`participation=None` must be of the kind Participation"),
        ({"checkpoint": 5}, r"`checkpoint=5` must be of the kind Checkpointing"),
    ],
)
def test_objects_of_another_kind(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FederatedTrainer(**option)


def test_a_trainer_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="There is no run: `fit` makes one"):
        _ = FederatedTrainer(default_root_dir=str(tmp_path)).server


class Origins(FederatedCallback):
    """Looks at where clients start, whatever stands before it."""

    def wrap_gradient(self, cohort: Any, gradient: Any) -> Any:
        assert cohort.origin.shape == cohort.values.shape
        return gradient


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_origins_are_rows(engine: str, tmp_path: Path) -> None:
    """So that ``origin[: len(params)]`` is right beside any other callback, and for clients that end early."""
    for stack in ([], [PersonalParameters(["*.head.*"]), Proximal(0.1)]):
        train([*stack, Origins()], tmp_path, mlp(), ragged_data(), engine=engine, max_rounds=1)
