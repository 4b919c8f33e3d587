"""SRPFL and what it is compared with, at equal simulated times: personal accuracy on MNIST-5000.

    python -m tools.papers.stragglers fixed dynamic --jobs 2
    python -m tools.papers.stragglers fixed-all dynamic-all --jobs 2   # all of 100 clients in every round
    python -m tools.papers.stragglers fixed --quick                    # a look, in some minutes: no results

100 clients of two classes, as in Figures 3 to 6 of the paper, which are on CIFAR, EMNIST and FEMNIST: all of them or 20
drawn anew for every round, speeds that are fixed or dynamic, and C seconds of communication in a round. Every method
makes two passes over a client's examples in a round, FedRep one on the head and one on the representation; "10 + 1" is
FedRep as in the paper's code, with ten on the head. FedAsync and FedBuff, which are newer, have as many clients at work
as the others ask in a round.

Rates are the best of 0.02, 0.05, 0.1 and 0.2 for each method, in 40 rounds of a seed that is not reported, with fixed
speeds, 20 clients, and C = 0, or 1 for those that do not wait.

A seed gives all methods the same partition, initial weights, speeds and draws. So methods are read where FedAvg's clock
stands after some of its rounds, under the same seed, and compared by the mean of those readings: differences are paired
by seed. C adds the same to every round of methods that wait, and changes nothing else in them: they are trained once
for all C. Those that do not wait are trained for each C, as it decides whose update comes first.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import shutil
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from lfl.storage.folders import CONFIG_FILE, METRICS_FILE
from tools.papers.experiments import Laboratory, Outcome, Run
from tools.papers.kept import Quantities, Quantity
from tools.papers.study import Method, Overrides, Results, Study, parse, partitioned, report_folders, run_studies

ACCURACY, TIME = "personal/val_acc", "sim/time"
COMMUNICATION = (0.0, 1.0, 10.0)
READ = 80  # rounds of FedAvg, at whose evaluations all are read
TARGETS = (85.0, 90.0)
_CLOCK = "FedAvg"
# Those that begin with the fastest clients, and what they are without that.
PAIRS = {
    "FedRep-SRPFL": "FedRep",
    "FedRep-SRPFL, 10 + 1": "FedRep, 10 + 1",
    "LG-SRPFL": "LG-FedAvg",
    "FLANP": "FedAvg",
    "FLANP-FT": "FedAvg-FT",
}

# Of the rounds of those that wait for nobody, one for each update, in one of FedAvg's: about as many as arrive in its
# time, by C.
PACES: Mapping[str, tuple[int, ...]] = {"fixed": (70, 50, 25), "dynamic": (50, 45, 25)}
BUFFER = 10
_HIGHER = ("FedRep, 10 + 1", "FedRep-SRPFL, 10 + 1", "FedAvg", "FedAsync")  # of 0.05 and 0.1 the better rate is 0.1


@dataclass(frozen=True)
class Curve:
    """The personal accuracy of one run, by simulated time.

    Attributes:
        times: of its evaluations, in seconds.
        accuracies: then, in percent.
    """

    times: Sequence[float]
    accuracies: Sequence[float]

    @classmethod
    def of(cls, outcome: Outcome, seconds: float = 0.0) -> Curve:
        """Read a run whose rounds take so many seconds more."""
        times = [time + seconds * number for number, time in outcome.series[TIME].items()]
        return cls(times, [100 * value for value in outcome.series[ACCURACY].values()])

    def at(self, time: float) -> float:
        """The last accuracy by then; NaN before the first one, and after the run."""
        count = bisect_right(self.times, time)
        is_over = count == len(self.times) and time > self.times[-1]
        return math.nan if not count or is_over else self.accuracies[count - 1]

    def reaches(self, accuracy: float) -> float | None:
        """The time of the first evaluation with that accuracy."""
        return next((t for t, value in zip(self.times, self.accuracies, strict=True) if value >= accuracy), None)


@dataclass(frozen=True)
class Race:
    """All methods with one time of communication, on the same clocks.

    Attributes:
        curves: by method, one a seed.
        clocks: FedAvg's times [seconds], or those of another timer, by its rounds, of each seed.
    """

    curves: Mapping[str, Sequence[Curve]]
    clocks: Sequence[Mapping[int, float]]

    @classmethod
    def of(cls, results: Results, communication: float = 0.0, timer: str = _CLOCK) -> Race:
        """Take the runs that have this C, and those that have it when it is added.

        Args:
            results: by method; those whose names end in ", C = ..." have a C of their own.
            communication: C.
            timer: the method on whose clock all are read.
        """
        curves = {}
        for name, outcomes in results.items():
            method, _, own = name.partition(", C = ")
            if not own or float(own) == communication:
                curves[method] = [Curve.of(outcome, 0.0 if own else communication) for outcome in outcomes]
        clocks = [
            dict(zip(outcome.series[TIME], curve.times, strict=True))
            for outcome, curve in zip(results[timer], curves[timer], strict=True)
        ]
        return cls(curves, clocks)

    def means(self, name: str) -> list[float]:
        """Means over the times of FedAvg's evaluations up to round ``READ``, by seed.

        What is not evaluated yet, or has ended, counts neither for nor against a method.
        """
        return [
            _mean([curve.at(time) for number, time in clock.items() if number <= READ])
            for curve, clock in zip(self.curves[name], self.clocks, strict=True)
        ]


def leads(values: Mapping[str, Sequence[float]], pairs: Mapping[str, str] = PAIRS) -> dict[str, list[float]]:
    """Values of methods that begin with the fastest clients, less those of what they are without that, by seed."""
    return {
        fast: [a - b for a, b in zip(values[fast], values[plain], strict=True)]
        for fast, plain in pairs.items()
        if {fast, plain} <= values.keys()
    }


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _mean(values: Sequence[float]) -> float:
    known = _known(values)
    return statistics.mean(known) if known else math.nan


def measure(results: Results) -> Quantities:
    """Accuracy on FedAvg's clock and seconds to accuracies, for each C, and the leads of those that begin with few."""
    found: dict[str, Quantity] = {}
    for communication in COMMUNICATION:
        race, at = Race.of(results, communication), f"C = {communication:g}"
        means = {name: race.means(name) for name in race.curves}
        seconds = {target: seconds_to(race, target) for target in TARGETS}
        found |= {f"mean accuracy %, {at}": Quantity(means), f"lead, {at}": Quantity(leads(means))}
        found |= {f"s to {target:g} %, {at}": Quantity(values, 0) for target, values in seconds.items()}
    return found


def seconds_to(race: Race, target: float) -> dict[str, list[float]]:
    """The times at which runs reach an accuracy, by method; inf where one never does."""
    hits = {name: [curve.reaches(target) for curve in curves] for name, curves in race.curves.items()}
    return {name: [math.inf if hit is None else hit for hit in values] for name, values in hits.items()}


_LOOKS = ["--metric", ACCURACY, "--x", "sim", "--log", "x"]
_LOOKS += [option for target in TARGETS for option in ("--target", f"{ACCURACY}={target / 100:g}")]


def report(name: str, laboratory: Laboratory, runs: Mapping[str, Sequence[Run]]) -> None:
    """Make a report for each C, of the runs that have it and of those that have it when it is added."""
    for communication in COMMUNICATION:
        folders: dict[str, dict[int, Path]] = {}
        for key, group in runs.items():
            method, _, own = key.partition(", C = ")
            if own and float(own) != communication:
                continue
            seconds = 0.0 if own else communication
            folders[method] = {run.seed: delayed(laboratory.folder(run), seconds) for run in group}
        report_folders(laboratory.output / f"{name}-{communication:g}", folders, _LOOKS)


def delayed(folder: Path, seconds: float) -> Path:
    """The folder of a run as it would be with so many seconds of communication in a round; its own for none.

    Args:
        folder: where the run's own folder is.
        seconds: C, which a run whose server waits adds to each of its rounds, and which changes nothing else in it.
    """
    if not seconds:
        return folder
    copy = folder.with_name(f"{folder.name}_{seconds:g}")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    for path in copy.rglob(METRICS_FILE):
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            row[TIME] = repr(float(row[TIME]) + seconds * int(row["round"]))
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    for path in copy.rglob(CONFIG_FILE):
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        config["trainer"]["system"]["init_args"]["communication"] = seconds
        path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return copy


_EVALUATION = "lfl.callbacks.ClientEvaluation"
EVERY = 5
_WAITING_FOR_NOBODY = {"FedAsync": ("fedasync.yaml", 1), "FedBuff": ("fedbuff.yaml", BUFFER)}  # with their buffers


def local_optimizer(name: str) -> Overrides:
    """SGD with a method's own rate and momentum 0.5, as in the paper; HF-MAML's has none."""
    return (
        ("optimizer.init_args.lr", 0.1 if name in _HIGHER else 0.05),
        ("optimizer.init_args.momentum", 0.0 if name == "HF-MAML" else 0.5),
    )


def phases(head_epochs: int) -> Overrides:
    """Local work of FedRep, with one epoch on the representation."""
    epochs = {"head": head_epochs, "features": 1}
    work = [{"parameters": [f"backbone.{part}.*"], "epochs": count} for part, count in epochs.items()]
    return (("trainer.local_phases", json.dumps(work)),)


def waiting(initial: int) -> dict[str, Method]:
    """The methods that wait for the slowest participant, whose stages begin with ``initial`` clients."""
    passes: Overrides = (("trainer.local_epochs", 2),)
    stages: Overrides = (
        ("trainer.participation.init_args.initial", initial),
        ("trainer.participation.init_args.resample", "round"),
    )
    return {
        "FedRep": Method("fedrep.yaml", phases(1)),
        "FedRep-SRPFL": Method("fedrep_srpfl.yaml", (*phases(1), *stages)),
        "FedRep, 10 + 1": Method("fedrep.yaml", phases(10)),
        "FedRep-SRPFL, 10 + 1": Method("fedrep_srpfl.yaml", (*phases(10), *stages)),
        "LG-FedAvg": Method("lg_fedavg.yaml", passes),
        "LG-SRPFL": Method("lg_srpfl.yaml", (*passes, *stages)),
        "FLANP": Method("flanp.yaml", (*passes, *stages)),
        "FLANP-FT": Method("flanp_finetuned.yaml", (*passes, *stages)),
        _CLOCK: Method("fedavg_finetuned.yaml", (*passes, ("trainer.callbacks.init_args.fine_tune", "null"))),
        "FedAvg-FT": Method("fedavg_finetuned.yaml", passes),
        "HF-MAML": Method("hf_maml.yaml", passes),
    }


def waiting_for_nobody(paces: Sequence[int], participants: int) -> dict[str, Method]:
    """FedAsync and FedBuff, which hear of C: a method for each."""
    found = {}
    for name, (config, buffer) in _WAITING_FOR_NOBODY.items():
        for communication, updates in zip(COMMUNICATION, paces, strict=True):
            pace = max(1, updates * participants // 20 // buffer)
            overrides: Overrides = (
                ("trainer.local_epochs", 2),
                *local_optimizer(name),
                ("trainer.participation.init_args.concurrency", participants),
                ("trainer.participation.init_args.buffer", buffer),
                ("trainer.system.init_args.communication", communication),
                ("trainer.callbacks+", _EVALUATION),
                ("trainer.callbacks.init_args.every_n_rounds", EVERY * pace),
            )
            found[f"{name}, C = {communication:g}"] = Method(config, overrides, pace)
    return found


def asking(participants: int) -> dict[str, Method]:
    """The methods that wait, with so many clients asked in a round, and their rates."""
    clients = ("trainer.participation.init_args.clients_per_round", participants)
    return {
        name: Method(method.config, (*method.overrides, clients, *local_optimizer(name)))
        for name, method in waiting(initial=max(5, participants // 10)).items()
    }


MNIST: Overrides = (
    ("model.init_args.backbone", "lfl.models.LeNet5"),
    ("data.init_args.source", "lfl.data.MNIST5000"),
    ("data.init_args.num_clients", 100),
    ("data.init_args.batch_size", 10),
)
TWO_CLASSES = partitioned("ClassesPerClientPartitioner", classes_per_client=2)


def exponential(is_dynamic: bool = False) -> Overrides:
    """Speeds that are Exp(1) and fixed, or have rates of their own and are drawn in every round."""
    return (
        ("trainer.system", "lfl.system.ExponentialSpeeds"),
        ("trainer.system.init_args.means", "null"),
        ("trainer.system.init_args.rates", "[0.01, 1.0]" if is_dynamic else 1.0),
        ("trainer.system.init_args.dynamic", is_dynamic),
    )


def study(speeds: str, participants: int) -> Study:
    """All methods with fixed or dynamic speeds and so many participants of 100 clients."""
    return Study(
        f"MNIST-5000, LeNet-5, 2 classes per client, {participants} of 100 clients, {speeds} speeds: "
        "personal accuracy % over FedAvg's time",
        {**asking(participants), **waiting_for_nobody(PACES[speeds], participants)},
        (*MNIST, *TWO_CLASSES, *exponential(speeds == "dynamic")),
        rounds=100,
        evaluate_every=EVERY,
        metrics=(ACCURACY, TIME),
        measure=measure,
        report=report,
        needs=(_CLOCK,),
    )


STUDIES = {
    "fixed": study("fixed", 20),
    "dynamic": study("dynamic", 20),
    "fixed-all": study("fixed", 100),
    "dynamic-all": study("dynamic", 100),
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    return parse(STUDIES, __doc__, "stragglers", arguments)


def main(arguments: list[str] | None = None) -> None:
    run_studies(STUDIES, options_of(arguments))


if __name__ == "__main__":
    main()
