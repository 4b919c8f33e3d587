"""FedSub: the identity is SCAFFOLD, and the variant `stale`, whose absent clients update their duals too."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import train

from lfl.callbacks import FedSub, Scaffold
from lfl.checkpointing import Checkpointing
from lfl.participation import FixedParticipation, FullParticipation, UniformParticipation
from lfl.problems import MatrixRegression, MatrixRegressionData
from lfl.round import Cohort, Round
from lfl.subspace import IdentitySubspace, LayerwiseSubspace
from lfl.subspace.refresh import RefreshedBasis


def test_fedsub_with_the_identity_and_full_participation_is_scaffold(tmp_path: Path) -> None:
    options = {"participation": FullParticipation(), "max_rounds": 5, "local_steps": 4}
    scaffold, fedsub = (train([c], tmp_path, **options) for c in (Scaffold(), FedSub(IdentitySubspace())))
    torch.testing.assert_close(fedsub.server.vector, scaffold.server.vector, rtol=0, atol=1e-11)
    duals = fedsub.store.gather("fedsub/dual", torch.arange(8))
    assert duals.sum(dim=0).abs().max() < 1e-13
    assert duals.abs().max() > 1e-3


class Watched(FedSub):
    """Keeps, of every round, the endpoints z_i of its clients, and the duals of all of them after it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(LayerwiseSubspace(0.3), variant="stale", **options)
        self.endpoints: list[dict[int, Tensor]] = []
        self.duals: list[Tensor] = []

    def on_cohort_end(self, cohort: Cohort) -> None:
        self.endpoints += [{}] * (cohort.round.number - len(self.endpoints))
        self.endpoints[-1] = {
            **self.endpoints[-1],
            **dict(zip(cohort.ids.tolist(), cohort.values.clone(), strict=True)),
        }
        super().on_cohort_end(cohort)

    def on_server_step(self, round: Round) -> None:
        super().on_server_step(round)
        self.duals.append(self._rows("fedsub/dual", torch.arange(8), round.number))


def test_stale_duals_by_hand(tmp_path: Path) -> None:
    """Two rounds with one basis, a third one with another: ``lambda_i += e_i - mean_j e_j`` for all eight clients."""
    callback = Watched(refresh_every=2)
    participation = FixedParticipation([[0, 1], [0, 3], [2, 3]])
    trainer = train([callback], tmp_path, max_rounds=3, participation=participation)
    bases = RefreshedBasis(callback.subspace, 2, trainer.layout, trainer.run.seed, trainer.server.vector.device)
    rank = callback.duals[0].shape[1]
    last, dual = (torch.zeros(8, rank, dtype=torch.float64) for _ in range(2))
    for number, (endpoints, found) in enumerate(zip(callback.endpoints, callback.duals, strict=True), 1):
        if number == 3:
            last, dual = (bases.of_period(1).project(bases.of_period(0).lift(rows)) for rows in (last, dual))
        for client, endpoint in endpoints.items():
            last[client] = endpoint
        dual += last - last.mean(dim=0)
        torch.testing.assert_close(found, dual, rtol=0, atol=1e-14)
    assert not last[4:].any()
    assert dual[4:].abs().min() > 0


def test_with_all_clients_stale_is_public(tmp_path: Path) -> None:
    vectors = [
        train(
            [FedSub(LayerwiseSubspace(0.3), refresh_every=2, variant=variant)],
            tmp_path,
            participation=FullParticipation(),
        ).server.vector
        for variant in ("public", "stale")
    ]
    # The mean of what clients sent, and of what is kept of them.
    torch.testing.assert_close(*vectors, rtol=0, atol=1e-13)


def test_stale_duals_survive_a_restart(tmp_path: Path) -> None:
    checkpoint = Checkpointing(every_n_rounds=2, keep_all=True)
    stack = [FedSub(LayerwiseSubspace(0.3), refresh_every=2, variant="stale")]
    unbroken = train(stack, tmp_path / "unbroken", max_rounds=5, checkpoint=checkpoint)
    saved = Path(unbroken.log_dir) / "checkpoints" / "round_000002.ckpt"
    resumed = train(stack, tmp_path / "resumed", ckpt_path=str(saved), max_rounds=5, checkpoint=checkpoint)
    assert torch.equal(resumed.server.vector, unbroken.server.vector)


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "expected"), [("public", 6.57e-3), ("stale", 1.21e-2)])
def test_what_each_variant_comes_to_on_the_toy_problem(variant: Any, expected: float, tmp_path: Path) -> None:
    """Near the errors of long runs in docs/results/ssf.md, at het 0.1 and r = 20; SSF's paper prints 1.13e-2."""
    torch.manual_seed(0)
    sizes = {"dim": 100, "outputs": 10}
    trainer = train(
        [FedSub(LayerwiseSubspace(20), variant=variant)], tmp_path, MatrixRegression(ridge=0.1, lr=0.01, **sizes),
        MatrixRegressionData(20, 50, heterogeneity=0.1, noise=0.01, batch_size=20, **sizes), engine="vectorized",
        trace_steps=True, participation=UniformParticipation(10), local_steps=5, local_sampling="replacement",
        max_rounds=1000,
    )  # fmt: skip
    assert float(trainer.callback_metrics["val_error"]) == pytest.approx(expected, rel=0.15)
