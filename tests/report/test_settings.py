"""Settings by dotted names, and what runs are called by them."""

from run_folders import PROXIMAL, config_of

import lfl.callbacks
from lfl.report.settings import OBSERVERS, differing, flatten, labels, shared, short_names

SCAFFOLD = {"class_path": "lfl.callbacks.Scaffold", "init_args": {}}
WATCHING = {"class_path": "lfl.callbacks.ClientEvaluation", "init_args": {"every_n_rounds": 5}}


def test_a_config_is_flattened_without_what_does_not_change_numbers() -> None:
    assert flatten(config_of(seed=3, callbacks=[WATCHING, PROXIMAL])) == {
        "seed_everything": 3,
        "trainer.max_rounds": 4,
        "trainer.callbacks": "lfl.callbacks.Proximal",
        "trainer.callbacks.Proximal.mu": 0.1,
        "trainer.system": None,
        "data": "lfl.data.FederatedDataModule",
        "data.num_clients": 20,
        "data.seed": 0,
        "optimizer": "torch.optim.SGD",
        "optimizer.lr": 0.1,
        "optimizer.nesterov": False,
    }


def test_observers_are_those_of_the_library() -> None:
    kinds = (getattr(lfl.callbacks, name) for name in lfl.callbacks.__all__)
    assert {kind.__name__ for kind in kinds if getattr(kind, "observes", False) is True} == OBSERVERS


def test_lists_nested_classes_and_dicts_are_flattened() -> None:
    phases = [{"epochs": 1, "trainable": ["head"]}, {"epochs": 2}]
    parts = {"class_path": "lfl.system.Consecutive", "init_args": {"parts": [{"class_path": "lfl.system.Links"}]}}
    found = flatten({"trainer": {"local_phases": phases, "system": parts}})
    assert found == {
        "trainer.local_phases": "entry + entry",
        "trainer.local_phases.0": "epochs, trainable",
        "trainer.local_phases.0.epochs": 1,
        "trainer.local_phases.0.trainable": "['head']",
        "trainer.local_phases.1": "epochs",
        "trainer.local_phases.1.epochs": 2,
        "trainer.system": "lfl.system.Consecutive",
        "trainer.system.parts": "lfl.system.Links",
    }
    twice = flatten({"trainer": {"callbacks": [PROXIMAL, PROXIMAL]}})
    assert list(twice)[1:] == ["trainer.callbacks.Proximal.mu", "trainer.callbacks.Proximal 2.mu"]


def test_arguments_of_a_class_differ_only_where_they_were_varied() -> None:
    stronger = {**PROXIMAL, "init_args": {"mu": 1.0}}
    fedavg, weak, strong = (flatten(config_of(callbacks=c)) for c in (None, [PROXIMAL], [stronger]))
    assert differing([fedavg, weak]) == ["trainer.callbacks"]
    assert differing([fedavg, weak, strong]) == ["trainer.callbacks", "trainer.callbacks.Proximal.mu"]
    assert differing([weak, strong]) == ["trainer.callbacks.Proximal.mu"]
    assert differing([fedavg, flatten(config_of(seed=1))]) == []
    assert "optimizer.lr" in shared([fedavg, strong])
    assert "trainer.callbacks" not in shared([fedavg, strong])


def test_linked_settings_are_one() -> None:
    runs = [{"model.lr": lr, "optimizer.lr": lr, "optimizer.momentum": m} for lr, m in ((0.1, 0.0), (0.2, 0.9))]
    assert differing(runs) == ["model.lr", "optimizer.momentum"]


def test_labels_have_as_few_settings_as_tell_groups_apart() -> None:
    mu = "trainer.callbacks.Proximal.mu"
    groups = [
        {"trainer.callbacks": "FedAvg", "optimizer.lr": 0.1},
        {"trainer.callbacks": "lfl.callbacks.Proximal", mu: 0.1, "optimizer.lr": 0.1},
        {"trainer.callbacks": "lfl.callbacks.Proximal", mu: 1.0, "optimizer.lr": 0.1},
        {"trainer.callbacks": "lfl.callbacks.Scaffold + my.Own", "optimizer.lr": 0.2},
    ]
    names = short_names(["trainer.callbacks", mu, "optimizer.lr"])
    assert labels(groups, names) == ["FedAvg", "Proximal, mu 0.1", "Proximal, mu 1", "Scaffold + Own"]
    assert labels([{"optimizer.lr": 0.1}, {"optimizer.lr": 0.2}], {"optimizer.lr": "lr"}) == ["lr 0.1", "lr 0.2"]
    assert labels([{}, {"optimizer.lr": 0.2}], {"optimizer.lr": "lr"}) == ["others", "lr 0.2"]


def test_no_two_labels_are_equal() -> None:
    groups = [{"trainer.callbacks": name} for name in ("a.Own", "b.Own", "c.Own")]
    assert labels(groups, {"trainer.callbacks": "callbacks"}) == ["Own", "Own #2", "Own #3"]


def test_short_names_do_not_meet_what_is_reserved() -> None:
    assert short_names(["data.round"], reserved=["round"]) == {"data.round": "data.round"}


def test_fine_tuning_before_an_evaluation_is_a_setting() -> None:
    """The accuracies of clients are other ones with it, though the run is the same."""
    evaluations = [
        {"class_path": "lfl.callbacks.ClientEvaluation", "init_args": {"every_n_rounds": n, "fine_tune": tuned}}
        for n, tuned in ((5, None), (10, [{"parameters": ["head.*"], "epochs": 10}]))
    ]
    plain, tuned = (flatten({"trainer": {"callbacks": [evaluation]}}) for evaluation in evaluations)
    assert plain == {"trainer.callbacks": "FedAvg", "trainer.callbacks.ClientEvaluation.fine_tune": None}
    assert tuned["trainer.callbacks.ClientEvaluation.fine_tune.0.epochs"] == 10
    assert "trainer.callbacks.ClientEvaluation.fine_tune" in differing([plain, tuned])
