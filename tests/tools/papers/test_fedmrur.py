"""FedMRUR's parts and what it depends on: what is measured of made-up runs, and which runs studies share."""

import json

import pytest

from tools.papers import fedmrur
from tools.papers.experiments import Outcome
from tools.papers.kept import Quantity

RATIO = "hyperbolic/gradient_ratio"


def outcome(accuracies: dict[int, float], loss: float = 0.1, **more: dict[int, float]) -> Outcome:
    diagnosed = {f"diag/{name}": dict.fromkeys(accuracies, 0.5) for name in ("cosine", "norm_ratio", "drift")}
    series = {"val_acc": accuracies, "training_set/loss": dict.fromkeys(accuracies, loss), **diagnosed, **more}
    return Outcome(max(accuracies), 0.0, "", series)


def test_room_is_what_a_change_leaves() -> None:
    measured = Quantity({"A": [90.0, 91.0], "B": [90.5, 89.5], "C": [88.0, 91.0]}, 1)
    assert fedmrur.room(measured, 1.0, "A").values == {"B": [0.5, -0.5], "C": [-1.0, 1.0]}


def test_gamma_is_measured_against_the_papers() -> None:
    """Accuracies 90 and 89.2 %, losses 0.10 and 0.13: 0.2 points and 0.02 are left of 1 and 0.05."""
    results = {"gamma 0.005": [outcome({5: 0.9})], "gamma 0.5": [outcome({5: 0.892}, loss=0.13)]}
    found = fedmrur.measure_gamma(results)
    assert found["accuracy %: 1 less the change"].values == {"gamma 0.5": [pytest.approx(0.2)]}
    assert found["training loss: 0.05 less the change"].values == {"gamma 0.5": [pytest.approx(0.02)]}


def test_the_ratio_of_gradients_is_that_of_methods_with_the_term() -> None:
    results = {
        "MoFedSAM": [outcome({5: 0.9, 10: 0.9})],
        "H": [outcome({5: 0.9, 10: 0.9}, **{RATIO: {5: 0.01, 10: 0.03}})],
    }
    assert fedmrur.measure(results)["gradient ratio"].values == {"H": [pytest.approx(0.02)]}


def test_participants_save_rounds_against_the_next_fewer() -> None:
    """With 2 clients 85 % is never reached, which counts as 20 rounds; then it takes 15, 10 and 10 of them."""
    never = {5: 0.1, 10: 0.3, 15: 0.5, 20: 0.8}
    reached = {2: never, 5: {**never, 15: 0.85, 20: 0.85}, 10: {**never, 10: 0.86}, 20: {**never, 10: 0.9}}
    results = {
        fedmrur.of_so_many(family, clients): [outcome(accuracies)]
        for family in ("FedMRUR", "MoFedSAM")
        for clients, accuracies in reached.items()
    }
    found = fedmrur.measure_participation(results)
    saved = found["rounds to 85 % saved"].values
    assert [saved[f"FedMRUR, {clients} clients"] for clients in (5, 10, 20)] == [[5], [5], [0]]
    # Last three evaluations: 0.3, 0.5, 0.8 with 2 clients, and 0.3, 0.85, 0.85 with 5, 13.33 points more.
    rooms = found["accuracy %: 1 less the change"].values
    assert rooms["MoFedSAM, 5 clients"] == [pytest.approx(1 - 40 / 3)]
    assert "MoFedSAM, 2 clients" not in rooms


def runs(study: str) -> set[str]:
    made = fedmrur.STUDIES[study].runs([0], 300, "cpu")
    return {json.dumps([run.config, run.settings, run.metrics], sort_keys=True) for (run,) in made.values()}


def test_studies_share_runs() -> None:
    """N is gamma 0; FedMRUR and MoFedSAM with the constants of all are in every study."""
    assert len(runs("gamma") & runs("parts")) == 2
    assert len(runs("participation") & runs("parts")) == 2
    assert len(runs("constants") & runs("parts")) == 2
    assert len(runs("gamma") & runs("constants")) == 1


def test_a_study_says_who_takes_part() -> None:
    clients = "trainer.participation.init_args.clients_per_round"
    made = fedmrur.STUDIES["participation"].runs([0], 300, "cpu")
    assert [run.settings[clients] for (run,) in made.values()] == [2, 5, 10, 20] * 2
    parts = fedmrur.STUDIES["parts"].runs([0], 300, "cpu")
    assert {run.settings[clients] for (run,) in parts.values()} == {10}
