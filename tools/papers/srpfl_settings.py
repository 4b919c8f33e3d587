"""The SRPFL paper's other settings, one change each: personal accuracy on MNIST-5000, with few methods.

    python -m tools.papers.srpfl_settings resample imbalance examples mixture correlated end --seeds 5 --jobs 2
    python -m tools.papers.srpfl_settings new-clients --seeds 10 --jobs 2
    python -m tools.papers.srpfl_settings homogeneous --jobs 2
    python -m tools.papers.srpfl_settings resample --quick          # a look, in a minute: no results

- resample: clients that are drawn for a round, and for a stage (Remark 3.2).
- new-clients: a fifth of the clients takes no part, and fits heads afterwards (Remark 4.8).
- imbalance, examples: numbers of examples that differ, and doubling examples instead of clients (Appendix C).
- mixture: a tenth, or three tenths, of the clients need a hundred times as long (Appendix C).
- correlated: the same speeds, dealt by the clients' labels (Appendix C).
- homogeneous: all ten classes at every client (Appendix C).
- end: the accuracy after 150 rounds, of all clients and of the slowest tenth of them (Section 1).

Everything else is as in ``tools.papers.stragglers``: 20 of 100 clients of two classes, LeNet-5, fixed speeds, C = 0,
two passes over a client's examples in a round, and each method's own rate. Methods are read where FedRep's clock stands
after some of its rounds; it is FedAvg's too, as both wait for the same 20 clients. A study without FedRep has the clock
of its first method.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from tools.papers.kept import Quantities, Quantity
from tools.papers.stragglers import (
    ACCURACY,
    EVERY,
    MNIST,
    PAIRS,
    TARGETS,
    TIME,
    TWO_CLASSES,
    Race,
    asking,
    exponential,
    leads,
    local_optimizer,
    measure,
    phases,
    report,
    seconds_to,
)
from tools.papers.study import (
    Method,
    Overrides,
    Results,
    Study,
    final,
    last,
    parse,
    partitioned,
    per_run,
    report_runs,
    run_studies,
)

FEDREP, SRPFL = "FedRep", "FedRep-SRPFL"
PARTICIPANTS = 20
ASKED = asking(PARTICIPANTS)
BY_CLIENTS, BY_EXAMPLES = "doubling clients", "doubling examples"
ROUND, STAGE = "drawn for a round", "drawn for a stage"
KNOWN, NEW, SLOWEST = "fine_tuned/val_acc", "new/val_acc", "slowest/val_acc"
SLACK = 2.0  # points by which one may be worse than another and still count as good as that
TARGET = TARGETS[0]
_EVALUATION = "trainer.callbacks.init_args"
_PARTICIPATION = "trainer.participation"
Values = Mapping[str, Sequence[float]]


def by_seed(of: Callable[[float, float], float], first: Values, second: Values) -> dict[str, list[float]]:
    """A function of two values, for each method and seed."""
    return {name: [of(a, b) for a, b in zip(values, second[name], strict=True)] for name, values in first.items()}


def less(first: Values, second: Values) -> dict[str, list[float]]:
    """Differences, by method and seed."""
    return by_seed(lambda a, b: a - b, first, second)


def times(a: float, b: float) -> float:
    """The ratio of a to b; NaN where b was never reached."""
    return a / b if math.isfinite(b) else math.nan


def with_slack(name: str, differences: Values) -> dict[str, Quantity]:
    """Differences in points, and the same with the slack: above zero for what is as good but for that."""
    slack = {method: [value + SLACK for value in values] for method, values in differences.items()}
    return {name: Quantity(differences), f"{name}, plus {SLACK:g}": Quantity(slack)}


def crossed(methods: Mapping[str, Method], conditions: Mapping[str, Overrides]) -> dict[str, Method]:
    """Every method under every condition, as "METHOD, CONDITION"."""
    return {
        f"{name}, {condition}": with_changes(method, *overrides)
        for condition, overrides in conditions.items()
        for name, method in methods.items()
    }


def with_changes(method: Method, *overrides: tuple[str, object]) -> Method:
    """The method with more overrides."""
    return replace(method, overrides=(*method.overrides, *overrides))


def compared(results: Results, conditions: Sequence[str]) -> Quantities:
    """Mean accuracies, leads and seconds to an accuracy of methods under conditions, and how the last two change.

    Args:
        results: of methods under conditions, named as by ``crossed``; the first method of each has the clock.
        conditions: their names; changes are those from each to the next.
    """
    means: dict[str, dict[str, list[float]]] = {}
    seconds: dict[str, dict[str, list[float]]] = {}
    for condition in conditions:
        ending = f", {condition}"
        found = {name.removesuffix(ending): runs for name, runs in results.items() if name.endswith(ending)}
        race = Race.of(found, timer=next(iter(found)))
        means[condition] = {name: race.means(name) for name in race.curves}
        seconds[condition] = seconds_to(race, TARGET)
    pairs = {**PAIRS, BY_EXAMPLES: BY_CLIENTS}
    gains = {condition: leads(values, pairs) for condition, values in means.items()}
    steps = list(pairwise(conditions))
    lost = {after: less(gains[before], gains[after]) for before, after in steps}
    longer = {after: by_seed(times, seconds[after], seconds[before]) for before, after in steps}
    quantities = {
        "mean accuracy %": named(means),
        "lead": named(gains),
        "loss of lead": named(lost),
        f"s to {TARGET:g} %": named(seconds),
        "times as long": named(longer, 2),
    }
    return {name: quantity for name, quantity in quantities.items() if quantity.values}


def named(values: Mapping[str, Values], digits: int = 1) -> Quantity:
    """Values by condition and method, as those of "METHOD, CONDITION"."""
    return Quantity(
        {f"{name}, {where}": found for where, by_name in values.items() for name, found in by_name.items()}, digits
    )


def measure_resampling(results: Results) -> Quantities:
    """Mean accuracies over time, and their difference both ways, of what is drawn for a round and for a stage."""
    race = Race.of(results, timer=ROUND)
    means = {name: race.means(name) for name in race.curves}
    quantities = {"mean accuracy %": Quantity(means)}
    if STAGE in means:
        stage, round_ = {SRPFL: means[STAGE]}, {SRPFL: means[ROUND]}
        quantities |= with_slack("stage less round", less(stage, round_))
        quantities |= with_slack("round less stage", less(round_, stage))
    return quantities


def measure_new(results: Results) -> Quantities:
    """Accuracies after the last round, with fitted heads, of clients that took part and of those that never did."""
    known = per_run(results, lambda outcome: 100 * last(outcome, KNOWN))
    new = per_run(results, lambda outcome: 100 * last(outcome, NEW))
    return {
        "known clients %": known,
        "new clients %": new,
        **with_slack("new less known", less(new.values, known.values)),
    }


def measure_end(results: Results) -> Quantities:
    """Accuracies at the end of all clients and of the slowest tenth, and leads."""
    everyone = per_run(results, lambda outcome: 100 * final(outcome, ACCURACY))
    slowest = per_run(results, lambda outcome: 100 * final(outcome, SLOWEST))
    return {
        "all clients %": everyone,
        "slowest tenth %": slowest,
        **with_slack("lead", leads(everyone.values)),
        **with_slack("lead of the slowest tenth", leads(slowest.values)),
    }


def fitting(epochs: int, every: int) -> Overrides:
    """An evaluation every so many rounds, after so many epochs on the head."""
    work = [{"parameters": ["backbone.head.*"], "epochs": epochs}]
    return ((f"{_EVALUATION}.fine_tune", json.dumps(work)), (f"{_EVALUATION}.every_n_rounds", every))


def built(key: str, name: str, **arguments: object) -> Overrides:
    """An object of ``lfl`` with its arguments, in place of what a config has."""
    return ((key, json.dumps(described(name, **arguments))),)


def described(name: str, **arguments: object) -> dict[str, object]:
    """A class of ``lfl`` with its arguments, as in a config."""
    return {"class_path": f"lfl.{name}", "init_args": arguments}


def few(*names: str) -> dict[str, Method]:
    """Some of the methods of ``tools.papers.stragglers``."""
    return {name: ASKED[name] for name in names}


def study(
    title: str,
    methods: Mapping[str, Method],
    overrides: Overrides,
    measured: Callable[[Results], Quantities],
    metrics: tuple[str, ...] = (ACCURACY, TIME),
    rounds: int = 100,
) -> Study:
    """A study with 20 of 100 clients."""
    return Study(
        f"MNIST-5000, LeNet-5, {PARTICIPANTS} of 100 clients: {title}",
        methods,
        (*MNIST, *overrides),
        rounds,
        EVERY,
        metrics,
        measured,
        partial(report_runs, looks=("--metric", metrics[0])),
    )


def under(title: str, methods: Mapping[str, Method], conditions: Mapping[str, Overrides], common: Overrides) -> Study:
    """A study of methods under conditions, which differ in what ``common`` leaves open."""
    made = study(title, crossed(methods, conditions), common, partial(compared, conditions=list(conditions)))
    clock = next(iter(methods))
    return replace(made, needs=tuple(f"{clock}, {condition}" for condition in conditions))


def slower(share: float) -> Overrides:
    """Fixed speeds with mean times of 10 for a share of the clients, of 0.1 for the others."""
    fast = described("system.ExponentialSpeeds", means=0.1)
    return built("trainer.system", "system.Stragglers", share=share, factor=100.0, speeds=fast)


def resampling() -> Study:
    """FedRep-SRPFL whose clients are drawn for a round, and for a stage, with heads fitted before evaluations."""
    fitted = fitting(epochs=5, every=2 * EVERY)
    methods = {
        name: with_changes(ASKED[SRPFL], (f"{_PARTICIPATION}.init_args.resample", drawn), *fitted)
        for name, drawn in ((ROUND, "round"), (STAGE, "stage"))
    }
    title = "FedRep-SRPFL, personal accuracy % with fitted heads, over its time"
    made = study(title, methods, (*TWO_CLASSES, *exponential()), measure_resampling)
    return replace(made, needs=(ROUND,))


def newcomers() -> Study:
    """FedRep-SRPFL, 10 + 1, of which a fifth of the clients takes no part."""
    held_out = built(
        _PARTICIPATION,
        "participation.HeldOutParticipation",
        held_out_clients=0.2,
        participation=described(
            "participation.DoublingParticipation", clients_per_round=PARTICIPANTS, initial=5, rounds_per_stage=10
        ),
    )
    name = "FedRep-SRPFL, 10 + 1"
    scopes = ((f"{_EVALUATION}.scopes", json.dumps([metric.partition("/")[0] for metric in (KNOWN, NEW)])),)
    overrides = (*phases(10), *held_out, *scopes, *fitting(epochs=10, every=100), *local_optimizer(name))
    title = "20 of 100 held out, accuracy % after ten epochs on the heads"
    common = (*TWO_CLASSES, *exponential())
    return study(title, {name: Method("fedrep_srpfl.yaml", overrides)}, common, measure_new, metrics=(KNOWN, NEW))


def unequal() -> Study:
    """Equal numbers of examples, numbers in [2/3, 1], and log-normal ones."""
    sizes = {
        "equal": partitioned("LogNormalPartitioner", classes_per_client=2, sigma=0.0),
        "uniform": partitioned("UniformSizesPartitioner", classes_per_client=2, least=26, spread=13),
        "log-normal": partitioned("LogNormalPartitioner", classes_per_client=2, sigma=1.0),
    }
    return under("numbers of examples", few(FEDREP, SRPFL), sizes, exponential())


def doubling() -> Study:
    """Doubling clients, and their examples, for two spreads of log-normal numbers of examples."""
    methods = {
        name: with_changes(ASKED[SRPFL], (f"{_PARTICIPATION}.init_args.doubles", what))
        for name, what in ((BY_CLIENTS, "clients"), (BY_EXAMPLES, "examples"))
    }
    sizes = {
        f"sigma {sigma:g}": partitioned("LogNormalPartitioner", classes_per_client=2, sigma=sigma)
        for sigma in (1.0, 2.0)
    }
    return under("FedRep-SRPFL, log-normal numbers of examples", methods, sizes, exponential())


def correlated() -> Study:
    """The same speeds, dealt at random and by labels."""
    by_labels = built(
        "trainer.system",
        "system.CorrelatedSpeeds",
        by="labels",
        groups=3,
        speeds=described("system.ExponentialSpeeds", rates=1.0),
    )
    speeds = {"independent": exponential(), "by labels": by_labels}
    return under("speeds and labels", few(FEDREP, SRPFL), speeds, TWO_CLASSES)


def homogeneous() -> Study:
    """All classes at every client, with the baselines, at all C; read and reported as in ``stragglers``."""
    methods = few(FEDREP, SRPFL, "LG-FedAvg", "LG-SRPFL", "FLANP", "FLANP-FT", "FedAvg", "FedAvg-FT")
    all_classes = partitioned("ClassesPerClientPartitioner", classes_per_client=10)
    made = study("10 classes a client, fixed speeds", methods, (*all_classes, *exponential()), measure)
    return replace(made, report=report, needs=("FedAvg",))


def ending() -> Study:
    """The accuracy at the end, of all clients and of the slowest."""
    slowest = (("trainer.callbacks+", "tools.papers.slowest.SlowestClients"), (f"{_EVALUATION}.every_n_rounds", EVERY))
    methods = {
        name: with_changes(method, *slowest) for name, method in few(FEDREP, SRPFL, "LG-FedAvg", "LG-SRPFL").items()
    }
    title = "accuracy % at the end, of all clients and of the slowest tenth"
    common = (*TWO_CLASSES, *exponential())
    return study(title, methods, common, measure_end, metrics=(ACCURACY, SLOWEST), rounds=150)


STUDIES = {
    "resample": resampling(),
    "new-clients": newcomers(),
    "imbalance": unequal(),
    "examples": doubling(),
    "mixture": under("stragglers", few(FEDREP, SRPFL), {"10 %": slower(0.1), "30 %": slower(0.3)}, TWO_CLASSES),
    "correlated": correlated(),
    "homogeneous": homogeneous(),
    "end": ending(),
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    return parse(STUDIES, __doc__, "srpfl_settings", arguments)


def main(arguments: list[str] | None = None) -> None:
    run_studies(STUDIES, options_of(arguments))


if __name__ == "__main__":
    main()
