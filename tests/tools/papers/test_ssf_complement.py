"""SSF with its controls cut to the subspace of the round."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from worlds import train

from lfl.callbacks import SSF
from lfl.participation import UniformParticipation
from lfl.problems import MatrixRegression, MatrixRegressionData
from lfl.subspace import LayerwiseSubspace
from lfl.trainer import FederatedTrainer
from tools import CONFIGS
from tools.papers import reproduce, ssf_complement
from tools.papers.experiments import Laboratory
from tools.papers.ssf import Place
from tools.papers.ssf_complement import CutControls

N, D = 6, 5 * 2


def fit(folder: Path, rank: int, cut: bool, rounds: int) -> tuple[FederatedTrainer, SSF]:
    """Three of six clients a round, two steps."""
    ssf = SSF(LayerwiseSubspace(rank))
    data = MatrixRegressionData(N, 20, 5, 2, batch_size=5)
    options = {"participation": UniformParticipation(3), "local_steps": 2, "local_sampling": "replacement"}
    callbacks = [ssf, CutControls()] if cut else [ssf]
    return train(callbacks, folder, MatrixRegression(5, 2, lr=0.05), data, max_rounds=rounds, **options), ssf


def controls(trainer: FederatedTrainer) -> Tensor:
    return trainer.store.gather("ssf/control", torch.arange(N))


def outside(ssf: SSF, trainer: FederatedTrainer, vectors: Tensor, rounds: int) -> Tensor:
    """The components of vectors in the complement of the last round's subspace, drawn again from the seed."""
    address = (trainer.seed, "subspace", rounds - 1)
    basis = ssf.subspace.draw(trainer.layout, address, torch.device("cpu"), torch.float64)
    return vectors - basis.lift(basis.project(vectors))


def test_nothing_is_left_outside_of_the_subspace(tmp_path: Path) -> None:
    """But with ``SSF`` alone; and c is the mean of all c_i with both."""
    trainer, ssf = fit(tmp_path, rank=2, cut=True, rounds=4)
    whole, other = fit(tmp_path, rank=2, cut=False, rounds=4)
    for vectors in (ssf.control, controls(trainer)):
        assert float(outside(ssf, trainer, vectors, 4).abs().max()) < 1e-13
        assert float(vectors.abs().max()) > 0.1
    assert float(outside(other, whole, controls(whole), 4).abs().max()) > 0.1
    for run, callback in ((trainer, ssf), (whole, other)):
        torch.testing.assert_close(callback.control, controls(run).mean(dim=0))


def test_in_the_first_round_and_in_the_whole_space_there_is_nothing_to_cut(tmp_path: Path) -> None:
    for rank, rounds in ((2, 1), (5, 4)):
        (cut, _), (whole, _) = (fit(tmp_path, rank, is_cut, rounds) for is_cut in (True, False))
        torch.testing.assert_close(controls(cut), controls(whole))


def test_the_callback_is_appended_behind_ssf() -> None:
    """Settings that follow it would be its own."""
    noise, exact = ssf_complement.TARGETS["ssf-complement"].tables.values()
    _, method = noise.methods
    assert str(method) == "SSF, increment, controls cut"
    keys = [key for key, _ in noise.run(Place(0.5, 20), method, 0, 2000).overrides]
    assert keys[-1] == "trainer.callbacks+"
    assert "trainer.callbacks.init_args.control_update" in keys
    assert dict(exact.run(Place(0.5, 20), method, 0, 2000).overrides)["data.init_args.noise"] == 0.0


@pytest.mark.filterwarnings("ignore")
def test_both_parts_are_one_table(tmp_path: Path) -> None:
    laboratory = Laboratory(CONFIGS / "problems", tmp_path, tell=lambda said: None)
    options = reproduce.options_of(["ssf-complement", "--quick", "--rounds", "2"])
    found = ssf_complement.TARGETS["ssf-complement"].reproduce(laboratory, options)
    names = ["SSF, increment", "SSF, increment, controls cut"]
    assert [row[0] for row in found.table.rows] == [*names, *(f"{name}, no noise" for name in names)]
    assert {row.setting for row in found.numbers} == {"het 0.5, r = 20", "het 0.5, r = 20, no noise"}
    assert found.draw is not None
    found.draw(tmp_path / "both.png")
    assert {path.name for path in tmp_path.glob("*.png")} == {"both.png", "both-no-noise.png"}
