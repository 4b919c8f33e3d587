"""FedDyn: rounds by hand, what its state adds up to, and its switches."""

from pathlib import Path

import pytest
import torch
from quadratics import RepeatedData
from two_clients import path_of
from worlds import Bystander, Quadratic, mlp, ragged_data, train, train_quadratic

from lfl.aggregation import FedExP, MeanAggregator
from lfl.callbacks import SSF, FedDyn, Proximal
from lfl.participation import FixedParticipation, FullParticipation, UniformParticipation

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorized"])


def test_two_rounds_by_hand(tmp_path: Path) -> None:
    """alpha = eta = 1/2, one step: delta_1 = ((4, 0) - x - h_1 / 2) / 2, delta_2 = ((0, 2 (2 - x_2)) - h_2 / 2) / 2.

    1. h_i = 0: (2, 0) and (0, 2), mean (1, 1), h = (1, 1): x = (2, 2), twice the mean.
    2. delta_1 = ((2, -2) - (1, 0)) / 2 = (.5, -1), delta_2 = ((0, 0) - (0, 1)) / 2 = (0, -.5); mean (.25, -.75),
       h = (1.25, .25): x = (3.5, 1.5). h_1 = (2.5, -1), h_2 = (0, 1.5).
    """
    dyn = FedDyn(0.5)
    path, trainer = path_of([dyn], tmp_path, 2)
    assert path == [[2.0, 2.0], [3.5, 1.5]]
    assert trainer.store.gather("feddyn/moved", torch.arange(2)).tolist() == [[2.5, -1.0], [0.0, 1.5]]
    assert dyn.drift.tolist() == [1.25, 0.25]


def test_first_round_is_fedprox_on_the_clients_and_1_plus_m_over_n_at_the_server(tmp_path: Path) -> None:
    for clients in ([0, 1, 2, 3, 4], [1, 3]):
        options = {"participation": FixedParticipation([clients]), "max_rounds": 1}
        proximal, dyn = (
            train_quadratic([c], tmp_path, **options)[0].server.vector for c in (Proximal(0.5), FedDyn(0.5))
        )
        torch.testing.assert_close(dyn, (1 + len(clients) / 5) * proximal, rtol=1e-13, atol=0)


class MeanDrift(Bystander):
    """h is the clients' mean, with their weights."""

    def on_round_end(self, round) -> None:
        everyone = torch.arange(self.run.num_clients)
        rows = self.run.store.gather("feddyn/moved", everyone)
        weights = self.run.aggregator.weights(self.run.data.client_sizes)
        drift = self.run.callbacks[0].drift
        assert drift.abs().max() > 1e-4
        torch.testing.assert_close(weights @ rows / weights.sum(), drift, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*is kept, but FedDyn is stated for")
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_server_drift_is_the_mean_of_all_clients(weighting: str, tmp_path: Path) -> None:
    train([FedDyn(), MeanDrift()], tmp_path, max_rounds=5, aggregator=MeanAggregator(weighting))


def test_at_rest_the_drift_is_minus_the_gradient(tmp_path: Path) -> None:
    trainer, data = train_quadratic(
        [FedDyn(0.5)], tmp_path, max_rounds=120, engine="vectorized", module=Quadratic(lr=0.3)
    )
    moved = trainer.store.gather("feddyn/moved", torch.arange(5))
    assert (trainer.server.vector - data.optimum).norm() < 1e-10
    gradients = data.curvature * (data.optimum - data.centre)
    torch.testing.assert_close(0.5 * moved, -gradients, rtol=0, atol=1e-9)
    assert moved.sum(dim=0).abs().max() < 1e-9


@pytest.mark.filterwarnings("ignore:.*is kept, but FedDyn is stated for")
@pytest.mark.parametrize("participation", [FullParticipation(), UniformParticipation(2)])
def test_weights_by_examples_reach_the_optimum_of_that_objective(participation, tmp_path: Path) -> None:
    data = RepeatedData([3, 1, 4, 1, 5], batch_size=5)
    options = {"participation": participation, "aggregator": MeanAggregator("examples"), "engine": "vectorized"}
    rounds = 60 if isinstance(participation, FullParticipation) else 250
    trainer, _ = train_quadratic(
        [FedDyn(0.5)], tmp_path, data=data, module=Quadratic(lr=0.3), max_rounds=rounds, **options
    )
    assert (trainer.server.vector - data.optimum).norm() < 1e-8


@ENGINES
def test_without_both_terms_it_is_fedavg_to_the_bit_and_keeps_nothing(engine: str, tmp_path: Path) -> None:
    options = {"engine": engine, "precision": "32-true"}
    fedavg, ours = (
        train(stack, tmp_path, mlp(dropout=0.3), ragged_data(), **options)
        for stack in ([], [FedDyn(0.0, server_term=False)])
    )
    assert torch.equal(fedavg.server.vector, ours.server.vector)
    assert not ours.store.is_used
    assert FedDyn(0.0, server_term=False).weighting is None


def test_the_server_term_alone_is_not_fedavg_and_the_clients_term_alone_is_not_either(tmp_path: Path) -> None:
    fedavg, server, clients = (
        train_quadratic(stack, tmp_path, max_rounds=1)[0].server.vector
        for stack in ([], [FedDyn(0.0)], [FedDyn(0.5, server_term=False)])
    )
    torch.testing.assert_close(server, 2 * fedavg, rtol=1e-14, atol=0)
    assert clients.norm() < fedavg.norm()


def test_bytes_are_those_of_fedavg(tmp_path: Path) -> None:
    runs = [train(stack, tmp_path) for stack in ([], [FedDyn()])]
    assert runs[0].ledger.totals == runs[1].ledger.totals


def test_what_has_no_meaning_is_refused_with_both_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^FedDyn and SSF have no meaning together"):
        train([FedDyn(), SSF()], tmp_path)
    with pytest.raises(ValueError, match=r"^FedDyn and FedExP have no meaning together: .* Use MeanAggregator"):
        train([FedDyn()], tmp_path, aggregator=FedExP())
    with pytest.raises(ValueError, match=r"`alpha=-1.0` of FedDyn must be"):
        FedDyn(-1.0)
