"""The stacks of three papers on MNIST-5000, each with what it is compared with: one table a study.

    python -m tools.papers.stacks compression             # FLSS and sign compression, alone and together
    python -m tools.papers.stacks optimization --jobs 2   # FedMRUR and the methods it is made of
    python -m tools.papers.stacks personalization         # SRPFL, at equal simulated times
    python -m tools.papers.stacks compression --quick     # a look, in about a minute: no results

Every number comes from runs of ``lfl fit`` with files of ``configs/``, whose learning rates stay, and what a study
changes in all of them; a seed stands for the partition, the initial weights and every draw.
``lfl.callbacks.Diagnostics`` runs beside every method. The output folder gets the tables and what became of the papers'
claims (CSV, Markdown), the curves (PNG), and a small result file of every run: a run whose settings have a result is
not made again.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import CONFIGS
from tools.papers.claims import Claim, ordered, publish
from tools.papers.experiments import Laboratory, Outcome, Run, Series, add_options, opened
from tools.papers.summaries import last_tenth, mean_and_deviation
from tools.table import Table

Overrides = tuple[tuple[str, object], ...]
Results = Mapping[str, Sequence[Outcome]]

_DIRICHLET = "lfl.data.DirichletPartitioner"
_DIAGNOSTICS: Overrides = (
    ("trainer.callbacks+", "lfl.callbacks.Diagnostics"),
    ("trainer.callbacks.init_args.every_n_rounds", 5),
)
_COSINE = "diag/cosine"


@dataclass(frozen=True)
class Study:
    """A comparison of methods under one setting.

    Attributes:
        title: what is compared, on what.
        methods: file of ``configs/`` by name, and what is changed in it.
        overrides: what is changed in all files.
        rounds: of every run.
        evaluate_every: rounds between evaluations.
        metrics: what is kept; the first is the accuracy.
        tabulate: from results to a table.
        claims: from results to what holds.
        clock: what curves are drawn against; rounds where it is empty.
    """

    title: str
    methods: Mapping[str, str | tuple[str, Overrides]]
    overrides: Overrides
    rounds: int
    evaluate_every: int
    metrics: tuple[str, ...]
    tabulate: Callable[[Results, Table], None]
    claims: Callable[[Results], list[Claim]]
    columns: tuple[str, ...]
    clock: str = ""

    def runs(self, seeds: int, rounds: int, accelerator: str) -> dict[str, list[Run]]:
        """All runs, by method."""
        every = ("trainer.check_val_every_n_rounds", self.evaluate_every)
        common = (*self.overrides, every, ("trainer.accelerator", accelerator), *_DIAGNOSTICS)
        runs = {}
        for name, method in self.methods.items():
            config, own = method if isinstance(method, tuple) else (method, ())
            runs[name] = [Run(config, rounds, seed, self.metrics, (*own, *common)) for seed in range(seeds)]
        return runs


def final(outcome: Outcome, metric: str) -> float:
    """The mean of a metric over the last tenth of the evaluations, at least three."""
    return last_tenth(list(outcome.series[metric].values()), least=3)


def accuracy(results: Results, name: str, metric: str = "val_acc") -> float:
    """Accuracy in percent, the mean over seeds."""
    return statistics.mean(100 * final(outcome, metric) for outcome in results[name])


def last(outcome: Outcome, metric: str) -> float:
    """The last value of a metric."""
    return outcome.series[metric][max(outcome.series[metric])]


def rounds_to(outcome: Outcome, target: float, metric: str = "val_acc") -> int | None:
    """The first evaluated round at which the accuracy is reached."""
    return next((number for number, value in outcome.series[metric].items() if value >= target), None)


def at_time(outcome: Outcome, seconds: float, metric: str) -> float:
    """Accuracy in percent of the last evaluation before a simulated time."""
    times, values = outcome.series["sim/time"], outcome.series[metric]
    reached = [values[number] for number, time in times.items() if time <= seconds]
    return 100 * reached[-1] if reached else float("nan")


# -- the studies ------------------------------------------------------------------------------------------------------


def tabulate_compression(results: Results, table: Table) -> None:
    for name, outcomes in results.items():
        up, down = (
            statistics.mean(last(o, f"comm/total_{direction}_bytes") for o in outcomes) / 1e6
            for direction in ("up", "down")
        )
        table.add(
            name,
            mean_and_deviation([100 * final(o, "val_acc") for o in outcomes]),
            f"{up:.1f}",
            f"{down:.1f}",
            mean_and_deviation([final(o, _COSINE) for o in outcomes], 3),
            mean_and_deviation([final(o, "diag/trajectory/effective_rank") for o in outcomes]),
        )


def claim_above(lower: str, higher: str, text: str, results: Results) -> Claim:
    """Claim that one method is more accurate than another."""
    return ordered(text.format(higher=higher, lower=lower), {name: accuracy(results, name) for name in (lower, higher)})


def claim_compression(results: Results) -> list[Claim]:
    pairs = [("FedAvg", "FedAvg + FLSS"), ("Sign EF", "Sign EF + FLSS")]
    return [claim_above(*pair, "{higher} is at least as accurate as {lower}", results) for pair in pairs]


TARGET = 0.9


def tabulate_optimization(results: Results, table: Table) -> None:
    for name, outcomes in results.items():
        hits = [rounds_to(o, TARGET) for o in outcomes]
        reached = [float(hit) for hit in hits if hit is not None]
        told = mean_and_deviation(reached, 0)
        missed = len(hits) - len(reached)
        table.add(
            name,
            mean_and_deviation([100 * final(o, "val_acc") for o in outcomes]),
            told + (f" ({missed} never)" if missed else ""),
            mean_and_deviation([final(o, _COSINE) for o in outcomes], 3),
            mean_and_deviation([final(o, "diag/norm_ratio") for o in outcomes], 3),
            mean_and_deviation([final(o, "diag/drift") for o in outcomes], 2),
        )


def claim_optimization(results: Results) -> list[Claim]:
    pairs = [("FedAvg", "FedSAM"), ("FedCM", "MoFedSAM"), ("MoFedSAM", "FedMRUR-N"), ("MoFedSAM", "FedMRUR-H")]
    pairs += [("FedMRUR-N", "FedMRUR"), ("FedMRUR-H", "FedMRUR")]
    return [claim_above(*pair, "{higher} is better than {lower}", results) for pair in pairs]


TIMES = (10.0, 25.0, 50.0, 100.0, 200.0)
PERSONAL = "personal/val_acc"


def tabulate_personalization(results: Results, table: Table) -> None:
    for name, outcomes in results.items():
        cells = [[at_time(o, time, PERSONAL) for o in outcomes] for time in TIMES]
        totals = mean_and_deviation([last(o, "sim/time") for o in outcomes])
        finals = mean_and_deviation([100 * final(o, PERSONAL) for o in outcomes])
        table.add(
            name, *(mean_and_deviation(cell) if all(v == v for v in cell) else "" for cell in cells), finals, totals
        )


def claim_personalization(results: Results) -> list[Claim]:
    def at(name: str, time: float) -> float:
        return statistics.mean(at_time(outcome, time, PERSONAL) for outcome in results[name])

    claims = []
    for time in TIMES[1:4]:
        for fast, plain in (("FedRep-SRPFL", "FedRep"), ("LG-SRPFL", "LG-FedAvg")):
            claims.append(
                ordered(f"{fast} is ahead of {plain} at time {time:g}", {n: at(n, time) for n in (plain, fast)})
            )
        names = [name for name in results if name != "FedRep-SRPFL"]
        best = max(names, key=lambda name: at(name, time))
        told = {f"{best}, the best of the others:": at(best, time), "FedRep-SRPFL": at("FedRep-SRPFL", time)}
        claims.append(ordered(f"FedRep-SRPFL is ahead of all others at time {time:g}", told))
    return claims


_NETWORK: Overrides = (
    ("model.init_args.backbone", "lfl.models.LeNet5"),
    ("data.init_args.source", "lfl.data.MNIST5000"),
    ("data.init_args.num_clients", 100),
    ("data.init_args.batch_size", 10),
)
_SKEWED: Overrides = (
    ("data.init_args.partitioner", _DIRICHLET),
    ("data.init_args.partitioner.init_args.alpha", 0.3),
    ("trainer.participation", "lfl.participation.UniformParticipation"),
    ("trainer.participation.init_args.clients_per_round", 10),
    ("trainer.aggregator.init_args.weighting", "uniform"),
    ("trainer.local_epochs", 2),
)

STUDIES = {
    "compression": Study(
        "MNIST-5000, LeNet-5, Dirichlet(0.3), 10 of 100 clients",
        {
            "FedAvg": "fedavg.yaml",
            "FedAvg + FLSS": "flss.yaml",
            "Sign EF": "sign_ef.yaml",
            "Sign EF + FLSS": "sign_ef_flss.yaml",
            "Top-k EF": "topk_ef.yaml",
        },
        (*_NETWORK, *_SKEWED),
        rounds=150,
        evaluate_every=5,
        metrics=(
            "val_acc",
            "comm/total_up_bytes",
            "comm/total_down_bytes",
            _COSINE,
            "diag/trajectory/effective_rank",
        ),
        tabulate=tabulate_compression,
        claims=claim_compression,
        columns=("method", "accuracy %", "MB up", "MB down", "cosine of updates", "effective rank"),
        clock="comm/total_up_bytes",
    ),
    "optimization": Study(
        "MNIST-5000, LeNet-5, Dirichlet(0.3), 10 of 100 clients",
        {
            "FedAvg": "fedavg.yaml",
            "FedSAM": "fedsam.yaml",
            "FedCM": "fedcm.yaml",
            "MoFedSAM": "mofedsam.yaml",
            "FedMRUR-N": "fedmrur_n.yaml",
            "FedMRUR-H": "fedmrur_h.yaml",
            "FedMRUR": "fedmrur.yaml",
        },
        (*_NETWORK, *_SKEWED),
        rounds=150,
        evaluate_every=5,
        metrics=("val_acc", _COSINE, "diag/norm_ratio", "diag/drift"),
        tabulate=tabulate_optimization,
        claims=claim_optimization,
        columns=("method", "accuracy %", f"rounds to {100 * TARGET:g} %", "cosine of updates", "norm ratio", "drift"),
    ),
    "personalization": Study(
        "MNIST-5000, LeNet-5, 2 classes per client, 100 clients, fixed speeds Exp(1): personal accuracy %",
        {
            "FedRep": "fedrep.yaml",
            "FedRep-SRPFL": "fedrep_srpfl.yaml",
            "LG-FedAvg": "lg_fedavg.yaml",
            "LG-SRPFL": "lg_srpfl.yaml",
            "FLANP": "flanp.yaml",
            "FedAvg": ("fedavg_finetuned.yaml", (("trainer.callbacks.init_args.fine_tune", "null"),)),
            "FedAvg, fine-tuned": "fedavg_finetuned.yaml",
        },
        _NETWORK,
        rounds=100,
        evaluate_every=5,
        metrics=(PERSONAL, "sim/time", _COSINE),
        tabulate=tabulate_personalization,
        claims=claim_personalization,
        columns=("method", *(f"at {time:g}" for time in TIMES), "at the end", "time of all rounds"),
        clock="sim/time",
    ),
}


# -- running ----------------------------------------------------------------------------------------------------------


def plot(study: Study, results: Results, path: Path) -> None:
    """Draw accuracy against rounds, and against the study's clock: means over seeds."""
    from matplotlib.figure import Figure

    clocks = ["", study.clock] if study.clock else [""]
    figure = Figure(figsize=(5.5 * len(clocks), 4.5), layout="constrained")
    axes = figure.subplots(1, len(clocks), sharey=True, squeeze=False)[0]
    for axis, clock in zip(axes, clocks, strict=True):
        for name, outcomes in results.items():
            series = [outcome.series[study.metrics[0]] for outcome in outcomes]
            rounds = sorted(set.intersection(*(set(values) for values in series)))
            ticks = [_mean([o.series[clock] for o in outcomes], number) if clock else number for number in rounds]
            axis.plot(ticks, [100 * _mean(series, number) for number in rounds], label=name)
        axis.set(xlabel=clock or "round", ylabel=f"{study.metrics[0]}, %", xscale="log" if clock else "linear")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=150)


def _mean(series: Sequence[Series], number: int) -> float:
    return statistics.mean(values[number] for values in series)


def compare(name: str, laboratory: Laboratory, options: argparse.Namespace) -> None:
    """Make the runs of one study; show and write its table and claims, draw its figure."""
    study = STUDIES[name]
    rounds = options.rounds or (10 if options.quick else study.rounds)
    seeds = options.seeds or (1 if options.quick else 3)
    runs = study.runs(seeds, rounds, options.accelerator)
    found = laboratory.outcomes(run for group in runs.values() for run in group)
    results = {method: [found[run] for run in group] for method, group in runs.items()}
    table = Table(f"{study.title}; {rounds} rounds, {seeds} seed(s), {options.accelerator}", list(study.columns))
    study.tabulate(results, table)
    warning = "A quick look: neither numbers nor claims count." if options.quick else ""
    publish(laboratory.output, name, study.title, table, study.claims(results), warning)
    plot(study, results, laboratory.output / f"{name}.png")


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", choices=list(STUDIES))
    parser.add_argument("--accelerator", default="cpu", help="as in Lightning")
    add_options(parser, CONFIGS)
    parser.add_argument("--output", type=Path, default=Path("runs/stacks"))
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    with opened(options, options.output) as laboratory:
        for name in options.studies:
            compare(name, laboratory, options)


if __name__ == "__main__":
    main()
