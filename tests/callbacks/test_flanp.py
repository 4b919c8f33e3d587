"""FLANP's stages: the rule by hand, on quadratics; state, engines, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from worlds import Rounds, ragged_data, train, train_quadratic

from lfl.callbacks import GradientNormStages
from lfl.checkpointing import Checkpointing
from lfl.participation import DoublingParticipation, FullParticipation
from lfl.system import ExponentialSpeeds, FixedTimes
from lfl.trainer import FederatedTrainer


def options(clients: int = 5, **more: Any) -> dict[str, Any]:
    return {
        "participation": DoublingParticipation(initial=1, rounds_per_stage=None),
        "system": FixedTimes([[float(i) for i in range(clients, 0, -1)]]),  # the last client is the fastest
        **more,
    }


def test_the_rule_by_hand(tmp_path: Path) -> None:
    """Quadratics with one example each: s = 1, and grad F_i(x) = A_i (x - b_i).

    The same rounds by hand: gradient descent on the mean of the n fastest, n doubled after the first round whose x had
    ``|grad L_n|^2 <= 2 mu c / n``.
    """
    kept, mu, c = Rounds(), 0.3, 3.0
    found, data = train_quadratic(
        [GradientNormStages(mu, c), kept], tmp_path, local_steps=1, max_rounds=30, **options()
    )
    x, stage, stages = torch.zeros(12, dtype=torch.float64), 0, []
    for round in kept.kept:
        n = min(2**stage, 5)
        ids = list(range(5 - n, 5))
        assert round.clients.tolist() == ids
        torch.testing.assert_close(round.server, x, rtol=0, atol=1e-12)
        gradient = (data.curvature[ids] * (x - data.centre[ids])).mean(dim=0)
        assert float(round.metrics["flanp/gradient_norm"]) == pytest.approx(float(gradient.norm()), rel=1e-9)
        assert float(round.metrics["flanp/threshold"]) == pytest.approx((2 * mu * c / n) ** 0.5)
        assert round.metrics["flanp/stage"] == stage
        stages.append(stage)
        if n < 5 and float(gradient.norm() ** 2) <= 2 * mu * c / n:
            stage += 1
        x = x - 0.1 * gradient
    assert sorted(set(stages)) == [0, 1, 2, 3]
    assert stages.count(0) > 1
    # D numbers more for each participant of a round.
    assert found.ledger.up_bits == {"update": 5 * 12 * 64, "flanp/gradient": 5 * 12 * 64}


def test_a_resumed_run_goes_on_in_its_stage_and_engines_agree(tmp_path: Path) -> None:
    def run(folder: str, engine: str, **more: Any) -> FederatedTrainer:
        settings = options(8, system=ExponentialSpeeds(), max_rounds=6, engine=engine, **more)
        return train([GradientNormStages(mu=5.0, c=2.0)], tmp_path / folder, data=ragged_data(), **settings)

    checkpoint = Checkpointing(every_n_rounds=1, keep_all=True)
    unbroken = run("unbroken", "sequential", checkpoint=checkpoint)
    stages = unbroken.run.participation.stages_ended
    assert stages >= 1
    path = Path(unbroken.log_dir) / "checkpoints" / "round_000004.ckpt"
    resumed = run("resumed", "sequential", ckpt_path=str(path))
    assert torch.equal(resumed.server.vector, unbroken.server.vector)
    assert resumed.run.participation.stages_ended == stages
    vectorized = run("vectorized", "vectorized")
    torch.testing.assert_close(vectorized.server.vector, unbroken.server.vector, rtol=0, atol=1e-10)


def test_what_is_refused(tmp_path: Path) -> None:
    for participation in (DoublingParticipation(rounds_per_stage=3), FullParticipation()):
        with pytest.raises(ValueError, match="must be DoublingParticipation with `rounds_per_stage: null`"):
            train_quadratic([GradientNormStages()], tmp_path, **options(participation=participation))
    with pytest.raises(ValueError, match="`mu=0` of GradientNormStages must be a number greater than 0"):
        GradientNormStages(mu=0)
