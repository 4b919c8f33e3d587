"""What is logged of clients' updates and of the server's path, against direct computation."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from quadratics import quadratic_data
from torch import Tensor
from worlds import Bystander, Quadratic, cnn, mlp, train, train_quadratic

from lfl.callbacks import SSF, ClientMomentum, Diagnostics
from lfl.callbacks.diagnostics import agreement, spectrum
from lfl.checkpointing import Checkpointing
from lfl.participation import FixedParticipation
from lfl.subspace import LayerwiseSubspace

NAMES = ["cosine", "norm_ratio", "drift"]
SPECTRUM = ["energy_1", "energy_5", "effective_rank"]


class Keep(Bystander):
    """The updates of the last round and all steps of the server."""

    def on_round_start(self, round) -> None:
        self.updates: list[Tensor] = []

    def on_cohort_end(self, cohort) -> None:
        self.updates.append(cohort.params - cohort.round.server)

    def on_server_step(self, round) -> None:
        self.steps = [*getattr(self, "steps", []), self.run.server.vector - round.server]


def logged(trainer, names: list[str], prefix: str = "diag/") -> list[float]:
    return [trainer.summary.last(prefix + name)[0] for name in names]


def direct(rows: Tensor) -> list[float]:
    mean, norms = rows.mean(dim=0), rows.norm(dim=1)
    cosines = [a @ b / a.norm() / b.norm() for a, b in itertools.combinations(rows, 2)]
    drift = (rows - mean).square().sum(dim=1).mean().sqrt()
    return [float(torch.stack(cosines).mean()), float(mean.norm() / norms.mean()), float(drift / mean.norm())]


@pytest.mark.parametrize(("engine", "size"), [("sequential", None), ("vectorized", 2), ("vectorized", 64)])
@pytest.mark.parametrize("stack", [[], [SSF(LayerwiseSubspace(0.3))]])
def test_updates_against_all_pairs(stack: Any, engine: str, size: int | None, tmp_path: Path) -> None:
    keep = Keep()
    trainer = train([*stack, keep, Diagnostics()], tmp_path, cnn(), engine=engine, cohort_size=size)
    assert logged(trainer, NAMES) == pytest.approx(direct(torch.cat(keep.updates)), rel=1e-9)


def test_two_clients_by_hand(tmp_path: Path) -> None:
    """delta = (3, 0) and (0, 4): cosine 0, |mean| = 2.5, mean norm 3.5, deviations of 2.5 each."""
    data = quadratic_data([[1.0, 1.0]] * 2, [[3.0, 0.0], [0.0, 4.0]])
    options = {"module": Quadratic(dim=2, lr=1.0), "data": data, "local_steps": 1, "max_rounds": 1}
    trainer, _ = train_quadratic([Diagnostics()], tmp_path, **options)
    assert logged(trainer, NAMES) == pytest.approx([0.0, 2.5 / 3.5, 1.0], abs=1e-15)
    assert logged(trainer, SPECTRUM, "diag/trajectory/") == pytest.approx([1.0, 1.0, 1.0], abs=1e-12)


def sums(rows: Tensor) -> dict[str, Tensor]:
    norms = rows.norm(dim=1)
    units = torch.nn.functional.normalize(rows, dim=1)
    named = {"update": rows.sum(0), "direction": units.sum(0), "moved": (norms > 0).sum().double()}
    return {**named, "norm": norms.sum(), "square": norms.square().sum()}


def test_updates_that_are_zero_or_equal_or_alone() -> None:
    zero, row = torch.zeros(3, 5).double(), torch.arange(5.0).double()[None]
    assert {n: float(v) for n, v in agreement(sums(zero), 3).items()} == {"norm_ratio": 0.0, "drift": 0.0}
    equal = {n: float(v) for n, v in agreement(sums(row.repeat(4, 1)), 4).items()}
    assert equal == pytest.approx({"norm_ratio": 1.0, "drift": 0.0, "cosine": 1.0}, abs=1e-7)
    assert set(agreement(sums(row), 1)) == {"norm_ratio", "drift"}
    one_still = agreement(sums(torch.cat([row, -row, zero[:1]])), 3)
    assert float(one_still["cosine"]) == pytest.approx(-1.0)


@pytest.mark.parametrize("kept", [4, 20])
def test_the_path_against_its_singular_values(kept: int, tmp_path: Path) -> None:
    keep = Keep()
    trainer = train([keep, Diagnostics(trajectory=kept)], tmp_path, mlp(), max_rounds=7)
    values = torch.linalg.svdvals(torch.stack(keep.steps[-kept:]))
    shares, p = values.square() / values.square().sum(), values / values.sum()
    expected = [float(shares[0]), float(shares[:5].sum()), float((-(p * p.log()).sum()).exp())]
    assert logged(trainer, SPECTRUM, "diag/trajectory/") == pytest.approx(expected, rel=1e-6)


def test_spectrum_of_known_vectors() -> None:
    orthogonal = {n: float(v) for n, v in spectrum(4.0 * torch.eye(8).double()).items()}
    assert orthogonal == pytest.approx({"energy_1": 1 / 8, "energy_5": 5 / 8, "effective_rank": 8.0})
    zero = {n: float(v) for n, v in spectrum(torch.zeros(3, 3).double()).items()}
    assert zero == {"energy_1": 0.0, "energy_5": 0.0, "effective_rank": 0.0}


def test_logged_when_due_and_nothing_else_changes(tmp_path: Path) -> None:
    """The path is followed in all rounds, so that its last steps are the last ones; it is logged with the rest."""
    runs = [train(s, tmp_path, mlp(), max_rounds=5) for s in ([], [Diagnostics(3, trajectory=2)], [Diagnostics(1, 2)])]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)
    assert torch.equal(runs[0].server.vector, runs[2].server.vector)
    assert not [name for name in names_of(runs[0]) if name.startswith("diag/")]
    assert runs[1].summary.last("diag/cosine")[1] == 3
    options = {"max_rounds": 3, "participation": runs[2].run.participation}
    third = train([Diagnostics(1, 2)], tmp_path, mlp(), **options)
    for names, prefix in ((NAMES, "diag/"), (SPECTRUM, "diag/trajectory/")):
        assert logged(runs[1], names, prefix) == logged(third, names, prefix)


def names_of(trainer) -> list[str]:
    return (Path(trainer.log_dir) / "metrics.csv").read_text().splitlines()[0].split(",")


def test_without_a_path_or_a_second_client(tmp_path: Path) -> None:
    schedule = FixedParticipation([[0]] * 2)
    trainer = train([Diagnostics(trajectory=0)], tmp_path, mlp(), participation=schedule, max_rounds=2)
    assert sorted(n for n in names_of(trainer) if n.startswith("diag/")) == ["diag/drift", "diag/norm_ratio"]
    assert trainer.summary.last("diag/norm_ratio")[0] == pytest.approx(1.0)


def test_a_resumed_run_logs_the_same(tmp_path: Path) -> None:
    options = {"max_rounds": 6, "precision": "32-true", "checkpoint": Checkpointing(every_n_rounds=2, keep_all=True)}

    def run(folder: str, checkpoint: str | None = None):
        stack = [ClientMomentum(0.3), Diagnostics(trajectory=3)]
        return train(stack, tmp_path / folder, mlp(), ckpt_path=checkpoint, **options)

    unbroken = run("unbroken")
    resumed = run("resumed", str(Path(unbroken.log_dir) / "checkpoints" / "round_000004.ckpt"))
    metrics = [(Path(trainer.log_dir) / "metrics.csv").read_bytes() for trainer in (unbroken, resumed)]
    assert metrics[0] == metrics[1]
