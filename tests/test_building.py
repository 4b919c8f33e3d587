"""What is refused is refused before anything is made on the disk."""

from pathlib import Path
from typing import Any

import pytest
from worlds import ONE_ROUND, Stock, batch_norm, even_data, images, mlp, ragged_data, train

from lfl.aggregation import MeanAggregator
from lfl.callbacks import SSF, PersonalParameters, Proximal, Scaffold
from lfl.checkpointing import Checkpointing
from lfl.data import DatasetSource, FederatedDataModule, IIDPartitioner
from lfl.participation import UniformParticipation
from lfl.subspace import DenseSubspace


def test_batch_hooks_that_are_not_called_are_named(tmp_path: Path) -> None:
    class Hooked(Stock):
        def on_train_batch_end(self, *args: Any) -> None:
            raise AssertionError

    with pytest.warns(UserWarning, match="overrides on_train_batch_end, which lfl does not call"):
        train([], tmp_path, Hooked(), max_rounds=1)


def test_dataloaders_that_clients_never_see_are_warned_of(tmp_path: Path) -> None:
    class Loading(Stock):
        def train_dataloader(self) -> Any:
            raise AssertionError

    class Sampling(FederatedDataModule):
        def train_dataloader(self) -> Any:
            raise AssertionError

    with pytest.warns(UserWarning, match=r"`Loading.train_dataloader` is never called: the data module has"):
        train([], tmp_path, Loading(), max_rounds=1)
    source = DatasetSource(images(), images(40, seed=1), num_classes=4)
    data = Sampling(source, IIDPartitioner(), num_clients=8, batch_size=5)
    with pytest.warns(UserWarning, match=r"`Sampling.train_dataloader` is for central training: .* a sampler"):
        train([], tmp_path, mlp(), data, max_rounds=1)


def no_optimizer() -> Stock:
    module = Stock()
    module.configure_optimizers = lambda: None  # type: ignore[assignment]
    return module


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"participation": UniformParticipation(9)}, "has 8 clients"),
        ({"callbacks": [PersonalParameters(["*"]), SSF()]}, "have no meaning together"),
        ({"callbacks": [SSF(DenseSubspace(10**6))]}, "must not exceed D="),
        ({"module": no_optimizer()}, "returned None"),
        ({"module": batch_norm(), "data": even_data(), "engine": "vectorized", **ONE_ROUND}, "cannot train Classifier"),
        ({"server_optimizer": lambda params: 1 / 0}, "division by zero"),
    ],
)
def test_what_is_refused_leaves_nothing_on_the_disk(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    callbacks = options.pop("callbacks", [])
    with pytest.raises((ValueError, TypeError, ZeroDivisionError), match=message):
        train(callbacks, tmp_path, client_state="memmap", **options)
    assert list(tmp_path.iterdir()) == []


def test_the_description_is_of_what_numbers_depend_on(tmp_path: Path) -> None:
    """Not of where things lie, how fast they are read, or who looks at them."""
    runs = [
        train([Proximal(0.5)], tmp_path, mlp(), ragged_data(**data), max_rounds=rounds, seed=3).run
        for data, rounds in (({}, 0), ({"eval_batch_size": 7}, 1))
    ]
    assert runs[0].description == runs[1].description
    description = runs[0].description
    assert description["seed"] == 3
    assert description["callbacks"] == [{"class": "lfl.callbacks.proximal.Proximal", "mu": 0.5}]
    assert description["data"]["batch_size"] == 5
    assert description["data"]["partition"] == runs[0].data.partition.fingerprint()
    assert description["model"]["parameters"]["backbone.head.bias"] == [4]


def test_the_weighting_that_was_taken_is_said_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the line at the start, in checkpoints, and for loggers; `auto` and what it takes resume each other."""
    options: dict[str, Any] = {"max_rounds": 1, "checkpoint": Checkpointing(), "enable_progress_bar": True}
    for stack, weighting in (([], "examples"), ([Scaffold()], "uniform")):
        folder = tmp_path / weighting
        first = train(stack, folder, mlp(), aggregator=MeanAggregator(weighting), **options)
        trainer = train(
            stack, folder, mlp(), aggregator=MeanAggregator(), ckpt_path="last", **{**options, "max_rounds": 2}
        )
        assert first.run.description["aggregator"]["weighting"] == weighting
        assert trainer.run.description["aggregator"] == first.run.description["aggregator"]
        assert f"MeanAggregator ({weighting}), SGD at the server, sequential engine" in capsys.readouterr().out
    other = pytest.raises(ValueError, match=r"aggregator.weighting: 'uniform' then, 'examples' now")
    with other, pytest.warns(UserWarning, match="Scaffold is stated for"):
        train([Scaffold()], folder, mlp(), aggregator=MeanAggregator("examples"), ckpt_path="last", **options)
