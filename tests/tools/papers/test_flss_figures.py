"""What FLSS's figures are read for, of made-up runs."""

import pytest

from tools.papers import flss_figures
from tools.papers.experiments import Outcome


def outcome(**series: dict[int, float]) -> Outcome:
    return Outcome(160, 0.0, "", {name.replace("__", "/"): rows for name, rows in series.items()})


def test_the_loss_rises_at_the_end_of_the_warm_up_and_falls_again() -> None:
    """It is 0.2 to round 80, 0.5 in round 81 and 0.3 to round 85, so 0.34 in these five, and 0.1 from there on."""
    loss = {n: 0.2 if n <= 80 else 0.5 if n == 81 else 0.3 if n <= 85 else 0.1 for n in range(1, 161)}
    clients = {n: 1.0 / n for n in loss}
    made = outcome(training_set__loss=loss, train__loss=clients, val_acc=dict.fromkeys(loss, 0.9))
    found = {name: q.values["FLSS"][0] for name, q in flss_figures.measure_loss({"FLSS": [made]}).items()}
    assert found["loss before"] == pytest.approx(0.2)
    assert found["rise"] == pytest.approx(0.14)
    assert found["rise in the first round"] == pytest.approx(0.3)
    assert found["fall to the end"] == pytest.approx(0.24)
    assert found["rise of the clients' loss"] < 0
    assert found["accuracy %"] == pytest.approx(90)


def test_features_become_more_distinct() -> None:
    accuracy = dict.fromkeys((5, 40, 80, 160), 0.9)
    rising = {5: 0.1, 40: 0.3, 80: 0.35, 160: 0.3}
    results = {
        "FedAvg": [outcome(val_acc=accuracy, features__silhouette=rising)],
        "FLSS": [outcome(val_acc=accuracy, features__silhouette={**rising, 160: 0.4})],
    }
    found = {name: quantity.values["FLSS"][0] for name, quantity in flss_figures.measure_features(results).items()}
    gains = [found[f"gain from {a} to {b}"] for a, b in ((5, 40), (40, 80), (80, 160))]
    assert gains == pytest.approx([0.2, 0.05, 0.05])
    assert found["above FedAvg's, round 160"] == pytest.approx(0.1)


def test_the_share_is_that_of_all_moves() -> None:
    made = outcome(val_acc={20: 0.5, 40: 0.9}, trajectory__share={20: 1.0, 40: 0.8})
    found = flss_figures.measure_directions({"MLP": [made]})
    assert found["share of 50 directions %"].values == {"MLP": [80.0]}


def test_networks_have_their_own_rates() -> None:
    runs = flss_figures.STUDIES["directions"].runs([0], 200, "cpu")
    rates = [run.settings["optimizer.init_args.lr"] for (run,) in runs.values()]
    assert (list(runs), rates) == (["MLP, 10 units", "MLP, 100 units", "MLP, 1000 units", "LeNet-5"], [0.2] * 3 + [0.1])
