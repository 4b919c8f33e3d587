"""What may not change a weight, to the bit; and what changes it by rounding only."""

import gc
from pathlib import Path

import pytest
import torch
from contract.methods import METHODS, also, train_method
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from worlds import cnn, mlp, ragged_data, train

from lfl.callbacks import Scaffold
from lfl.participation import Participation, UniformParticipation
from lfl.round import Cohort

ENGINES = ["sequential", "vectorized"]
# Of each kind of state and of aggregation one: the order of clients is the loop's affair.
KINDS = ["fedavg", "scaffold-2", "ssf-layerwise", "flss", "fedrep", "fedmrur", "median", "dp-fedavg", "fedgen"]


class Shuffled(UniformParticipation):
    """The same clients in another order."""

    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        return super().select(round_number, num_clients, seed).flip(0)


@pytest.mark.parametrize("engine", ENGINES)
def test_watching_a_run_changes_nothing(engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"engine": engine, "cohort_size": 3, "precision": "32-true"}
    plain = train([Scaffold()], tmp_path, mlp(dropout=0.3), **options)
    watched = train(
        [Scaffold()],
        tmp_path,
        mlp(dropout=0.3),
        logger=[TensorBoardLogger(str(tmp_path / "tensorboard"))],
        enable_progress_bar=True,
        check_val_every_n_rounds=1,
        **options,
    )
    assert torch.equal(plain.server.vector, watched.server.vector)
    assert "val_acc" in capsys.readouterr().out


@pytest.mark.parametrize("engine", [also("sequential"), "vectorized"])
@pytest.mark.parametrize("method", [name if name in KINDS else also(name) for name in METHODS])
def test_the_order_of_clients_changes_nothing(method: str, engine: str, tmp_path: Path) -> None:
    options = {"engine": engine, "cohort_size": 3, "precision": "32-true"}
    orders: list[Participation] = [UniformParticipation(5, 2), Shuffled(5, 2)]
    runs = [train_method(method, tmp_path, mlp(dropout=0.3), participation=o, **options) for o in orders]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_cohort_size_changes_rounding_only(method: str, tmp_path: Path) -> None:
    """Float32 sums in another order: 1e-6 after 3 rounds; the sequential engine has no cohorts to speak of."""
    runs = {
        (engine, size): train_method(
            method, tmp_path, cnn(), engine=engine, cohort_size=size, precision="32-true"
        ).server.vector
        for engine in ENGINES
        for size in (1, 4)
    }
    assert torch.equal(runs["sequential", 1], runs["sequential", 4])
    torch.testing.assert_close(runs["vectorized", 1], runs["vectorized", 4], rtol=0, atol=1e-5)


def test_the_global_generator_is_neither_read_nor_moved(tmp_path: Path) -> None:
    vectors = []
    for seed in (1, 2):
        module, data = mlp(dropout=0.5), ragged_data()
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        vectors.append(train([], tmp_path, module, data, engine="vectorized").server.vector)
        assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(vectors[0], vectors[1])


def test_the_seed_changes_everything_drawn(tmp_path: Path) -> None:
    first, second = (train([], tmp_path, mlp(), seed=seed) for seed in (0, 1))
    assert not torch.equal(first.server.vector, second.server.vector)


def test_ten_fits_in_one_process_leave_nothing(tmp_path: Path) -> None:
    vectors = [train([Scaffold()], tmp_path, mlp(), engine="vectorized", max_rounds=2).server.vector for _ in range(10)]
    assert all(torch.equal(vector, vectors[0]) for vector in vectors)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"run_{i:03d}" for i in range(10)]


@pytest.mark.parametrize("engine", ENGINES)
def test_cohorts_do_not_outlive_their_round(engine: str, tmp_path: Path) -> None:
    """Nothing of a client waits for the garbage collector: on a GPU that would be the memory of many cohorts."""
    gc.collect()
    gc.disable()
    try:
        train([Scaffold("I")], tmp_path, mlp(), engine=engine)
        assert not [found for found in gc.get_objects() if type(found) is Cohort]
    finally:
        gc.enable()
