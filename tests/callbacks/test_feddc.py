"""FedDC: a round by hand, controls under a decaying rate, and its switches."""

from pathlib import Path

import pytest
import torch
from two_clients import path_of
from worlds import Bystander, Quadratic, mlp, train, train_quadratic

from lfl.aggregation import FedExP
from lfl.callbacks import SSF, FedDC, FedDyn, Scaffold
from lfl.participation import FixedParticipation

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorized"])


def test_two_rounds_by_hand(tmp_path: Path) -> None:
    """alpha = 1/2, one step of rate 1/2: what FedDyn moves, less (c - c_i) / 2.

    1. h_i = c_i = 0: (2, 0) and (0, 2), h = (1, 1), x = (2, 2). c_i = -2 delta_i = (-4, 0), (0, -4); c = (-2, -2).
    2. FedDyn's delta_1 = (.5, -1), less ((-2, -2) - (-4, 0)) / 2 = (1, -1): (-.5, 0). delta_2 = (0, -.5), less
       ((-2, -2) - (0, -4)) / 2 = (-1, 1): (1, -1.5). Mean (.25, -.75), h = (1.25, .25), x = (3.5, 1.5).
       c_1 = c_1 - c - 2 delta_1 = (-4 + 2 + 1, 2) = (-1, 2), c_2 = (2 - 2, -4 + 2 + 3) = (0, 1); c = (-.5, 1.5).
    """
    method = FedDC(0.5)
    path, trainer = path_of([method], tmp_path, 2)
    assert path == [[2.0, 2.0], [3.5, 1.5]]
    assert trainer.store.gather("scaffold/control", torch.arange(2)).tolist() == [[-1.0, 2.0], [0.0, 1.0]]
    assert method.control is not None
    assert method.control.control.tolist() == [-0.5, 1.5]
    assert trainer.ledger.totals == {"down": 2 * 2 * 4 * 64, "up": 2 * 2 * 4 * 64}


class Halved(Quadratic):
    """The rate halves from round to round."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


class Changes(Bystander):
    """c_i - c from before the round, less the movement over 6 steps of the rate of that round."""

    def on_round_start(self, round) -> None:
        everyone = torch.arange(5)
        self.before = (
            self.run.store.gather("scaffold/control", everyone).clone() - self.run.callbacks[0].control.control
        )

    def on_cohort_end(self, cohort) -> None:
        rate = 0.1 * 0.5 ** (cohort.round.number - 1)
        self.expected = self.before[cohort.ids] - cohort.delta / (6 * rate)
        found = self.run.store.gather("scaffold/control", cohort.ids)
        torch.testing.assert_close(found, self.expected, rtol=0, atol=1e-12)


def test_controls_are_divided_by_the_rate_of_their_round(tmp_path: Path) -> None:
    options = {"module": Halved(), "participation": FixedParticipation([[0, 1, 2], [1, 4], [0, 2, 3]])}
    changes = Changes()
    train_quadratic([FedDC(0.1), changes], tmp_path, max_rounds=3, engine="vectorized", **options)
    assert changes.expected.abs().max() > 1e-3


@ENGINES
def test_without_all_terms_it_is_fedavg_to_the_bit(engine: str, tmp_path: Path) -> None:
    off = FedDC(0.0, server_term=False, control_term=False)
    options = {"engine": engine, "precision": "32-true"}
    fedavg, ours = (train(stack, tmp_path, mlp(dropout=0.3), **options) for stack in ([], [off]))
    assert torch.equal(fedavg.server.vector, ours.server.vector)
    assert fedavg.ledger.totals == ours.ledger.totals


def test_parts_are_feddyn_and_scaffold(tmp_path: Path) -> None:
    """Each alone, to the bit."""
    pairs = [
        (FedDC(0.3, control_term=False), FedDyn(0.3)),
        (FedDC(0.0, server_term=False), Scaffold()),
    ]
    for ours, theirs in pairs:
        found, expected = (train([method], tmp_path).server.vector for method in (ours, theirs))
        assert torch.equal(found, expected)


@pytest.mark.parametrize("others", [[Scaffold()], [FedDyn()], [SSF()]])
def test_stacks_without_meaning_are_refused_with_both_names(others, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"FedDC .*{type(others[0]).__name__}"):
        train([FedDC(), *others], tmp_path)


def test_other_aggregates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^FedDC and FedExP have no meaning together"):
        train([FedDC()], tmp_path, aggregator=FedExP())
