"""FedNova: a round by hand, the normaliser, and the optimum with unequal work."""

from pathlib import Path

import pytest
import torch
from quadratics import RepeatedData
from worlds import Bystander, Quadratic, mlp, ragged_data, train, train_quadratic

from lfl.aggregation import MeanAggregator
from lfl.callbacks import FLSS, SSF, FedDC, FedDyn, FedNova, Proximal, TopK
from lfl.client.optimizer import movement_scale
from lfl.engine import LocalPhase

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorized"])


WORK = {"local_steps": None, "local_epochs": 1}


@ENGINES
def test_a_round_by_hand(engine: str, tmp_path: Path) -> None:
    """1/2 (y - 4)^2 with one step of 1/2, 1/2 (y - 2)^2 with two: 2 and 1.5; in units of a step 2 and .75.

    Weights by examples, 1/3 and 2/3: tau = 5/3, mean (2 + 1.5) / 3 = 3.5 / 3: x = 17.5 / 9. Uniform: 1.5 * 1.375.
    """
    data = RepeatedData([1, 2], dim=1)
    data.curvature, data.centre = torch.ones(3, 1).double(), torch.tensor([[4.0], [2.0], [2.0]]).double()
    for weighting, expected in (("auto", 17.5 / 9), ("uniform", 1.5 * 1.375)):
        options = {"aggregator": MeanAggregator(weighting), "engine": engine, "max_rounds": 1, **WORK}
        trainer, _ = train_quadratic([FedNova()], tmp_path, data=data, module=Quadratic(1, lr=0.5), **options)
        assert trainer.server.vector.item() == pytest.approx(expected, abs=1e-14)
        assert trainer.ledger.totals == {"down": 2 * 64, "up": 2 * 2 * 64}


def test_normaliser_is_the_closed_form() -> None:
    """Momentum rho: (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho); pull mu: (1 - (1 - eta mu)^K) / (eta mu)."""
    for momentum, mu in ((0.9, 0.0), (0.0, 0.5), (0.9, 0.5)):
        point = torch.nn.Parameter(torch.zeros(1).double())
        sgd = torch.optim.SGD([point], lr=0.1, momentum=momentum)
        for _ in range(6):
            point.grad = 1 + mu * point.detach()  # gradient 1, and the pull back to 0
            sgd.step()
        found = movement_scale(sgd.param_groups, [0.1] * 6, mu)
        assert found == pytest.approx(-point.item(), rel=1e-13)
        if not mu:
            assert found == pytest.approx(0.1 * (6 - 0.9 * (1 - 0.9**6) / 0.1) / 0.1)
        elif not momentum:
            assert found == pytest.approx((1 - 0.95**6) / 0.5)


@pytest.mark.parametrize("stack", [[], [Proximal(0.3)]])
def test_equal_work_is_fedavg(stack, tmp_path: Path) -> None:
    fedavg, nova = (train_quadratic(s, tmp_path, max_rounds=4)[0].server.vector for s in (stack, [*stack, FedNova()]))
    torch.testing.assert_close(nova, fedavg, rtol=0, atol=1e-15)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_unequal_work_reaches_the_optimum_where_fedavg_does_not(momentum: float, tmp_path: Path) -> None:
    """1, 2, 4 and 8 steps of a small rate, clients alike; FedAvg prefers those with many steps."""
    distances = []
    for stack in ([], [FedNova()]):
        data = RepeatedData([1, 2, 4, 8])
        module = Quadratic(lr=0.02 * (1 - momentum), momentum=momentum)
        options = {"max_rounds": 120, "engine": "vectorized", **WORK}
        trainer, _ = train_quadratic(stack, tmp_path, data=data, module=module, **options)
        distances.append(float((trainer.server.vector - data.uniform).norm()))
    assert distances[0] > 1
    assert distances[1] < 0.1


def test_a_rate_that_changes_within_the_round(tmp_path: Path) -> None:
    """Rates 0.1, 0.05, ...: ||a|| eta is their sum."""

    class Falling(Quadratic):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    class Scales(Bystander):
        def on_round_end(self, round) -> None:
            self.sent = float(round.received["fednova"])

    scales = Scales()
    data = RepeatedData([1, 3])
    train_quadratic([FedNova(), scales], tmp_path, data=data, module=Falling(), max_rounds=1, **WORK)
    assert scales.sent == pytest.approx(0.1 + 0.175)


def test_phases_that_freeze_parameters_are_scaled_each_by_itself(tmp_path: Path) -> None:
    """Equal work in both phases: FedAvg, and two numbers more are sent."""
    phases = [LocalPhase(["*.head.*"], steps=3), LocalPhase(["backbone.[!h]*"], steps=5)]
    runs = [train(stack, tmp_path, mlp(), ragged_data(), local_phases=phases) for stack in ([], [FedNova()])]
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-14)
    assert runs[1].ledger.totals["up"] - runs[0].ledger.totals["up"] == 3 * 5 * 2 * 64


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ([TopK(0.1), FedNova()], "^TopK stands before FedNova, .* put FedNova before TopK"),
        ([FLSS(1, 2), FedNova()], "^FLSS stands before FedNova"),
        ([FedNova(), SSF()], "^FedNova and SSF have no meaning together"),
        ([FedDyn(), FedNova()], "^FedNova and FedDyn have no meaning together"),
        ([FedNova(), FedDC()], "^FedNova and FedDC have no meaning together"),
    ],
)
def test_what_has_no_meaning_is_refused_with_both_names(stack, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(stack, tmp_path)


def test_a_proximal_term_over_several_phases_is_refused(tmp_path: Path) -> None:
    phases = [LocalPhase(["*.head.*"], steps=3), LocalPhase(steps=5)]
    with pytest.raises(ValueError, match=r"^A proximal term has no single weight over 2 `local_phases`"):
        train([Proximal(0.1), FedNova()], tmp_path, mlp(), ragged_data(), local_phases=phases)
