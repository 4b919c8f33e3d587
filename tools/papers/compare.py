"""FedAvg, FedProx, SCAFFOLD, SSF and FedSub on MNIST-5000: accuracy, bytes and seconds, in one table.

    python -m tools.papers.compare                          # 3 seeds, 100 rounds
    python -m tools.papers.compare --lr 0.02 0.05 0.1       # each method with the best of three learning rates
    python -m tools.papers.compare --quick                  # a look at everything, in about a minute

McMahan's CNN (1,663,370 parameters), 100 clients by Dirichlet(0.1) of the classes, 10 per round, batches of 10, one
local epoch of plain SGD. Each cell is a run of ``lfl fit`` with a file of ``configs/`` and overrides; a seed stands for
the partition, the initial weights, and every draw. The output folder gets the table (CSV, Markdown), the curves (CSV,
PNG), and all run folders.

- Accuracy: of the server's model on the 1,000 test images, averaged over the last tenth of the evaluations (at least
  one), since single rounds jump under such heterogeneity; mean and standard deviation over seeds.
- Bytes: what the run's ledger counted, all clients together, catching up included.
- Seconds: the median training time of a round, without evaluation; the engines and methods take turns.
- With several learning rates, every method tries all of them in one run of a seed that is not reported, validated on a
  fifth of the training examples, never on the test set.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from lfl.hooks import NonFiniteUpdateError
from lfl.report.figures import draw_band
from lfl.report.numbers import last_tenth, mean_and_deviation
from tools import CONFIGS
from tools.papers.runs import RunFolder, fit, newest
from tools.table import Table

ENGINES = ("sequential", "vectorized")
TUNING_SEED = 1000
_RANK = "trainer.callbacks.init_args.subspace.init_args.rank"


@dataclass(frozen=True)
class Method:
    """A line of the table: a file of ``configs/`` and what is changed in it."""

    name: str
    config: str
    overrides: dict[str, object] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        """The method's name as the name of a folder."""
        return self.name.lower().replace(" ", "_")


METHODS = [
    Method("FedAvg", "fedavg.yaml"),
    Method("FedProx", "fedprox.yaml"),
    Method("SCAFFOLD", "scaffold.yaml"),
    Method("SSF 0.05", "ssf.yaml", {_RANK: 0.05}),
    Method("SSF 0.2", "ssf.yaml", {_RANK: 0.2}),
    Method("SSF 0.5", "ssf.yaml", {_RANK: 0.5}),
    Method("FedSub 0.2", "fedsub.yaml", {_RANK: 0.2}),
]


@dataclass(frozen=True)
class Setting:
    """Settings that all methods share."""

    configs: Path
    output: Path
    rounds: int
    engine: str
    seeds: int
    reuse: bool
    overrides: dict[str, object]

    @property
    def network(self) -> str:
        """The backbone's class."""
        return str(self.overrides["model.init_args.backbone"]).rpartition(".")[2]

    def run(self, method: Method, lr: float, seed: int, **overrides: object) -> RunFolder:
        """One run, or the same one of an earlier call where ``reuse`` allows it."""
        settings = {**self.overrides, **method.overrides, "trainer.max_rounds": self.rounds, "seed_everything": seed}
        settings |= {"trainer.engine": self.engine, "data.init_args.seed": seed, "optimizer.init_args.lr": lr}
        settings |= {"trainer.check_val_every_n_rounds": max(1, self.rounds // 50)}
        settings |= {key.replace("__", "."): value for key, value in overrides.items()}
        kind = "tune" if seed == TUNING_SEED else "run"
        root = self.output / "runs" / f"{kind}_{method.slug}_{settings['trainer.engine']}_lr{lr:g}_seed{seed}"
        found = newest(root) if self.reuse else None
        if found is not None and found.rounds == settings["trainer.max_rounds"]:
            return found
        try:
            return fit(self.configs / method.config, settings, root)
        except NonFiniteUpdateError as error:
            print(f"{method.name}, lr {lr:g}, seed {seed}: {error}", file=sys.stderr, flush=True)
            stopped = newest(root)
            assert stopped is not None
            return stopped


@dataclass
class Result:
    """The runs of a method and what they gave."""

    method: Method
    lr: float
    runs: list[RunFolder] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {engine: [] for engine in ENGINES})
    rounds: int = 0

    @property
    def finished(self) -> list[RunFolder]:
        """The runs that did not diverge."""
        return [run for run in self.runs if run.rounds >= self.rounds]

    def accuracies(self) -> list[float]:
        """Accuracy in percent for each seed that did not diverge."""
        return [100 * final_accuracy(run) for run in self.finished]

    def accuracy(self) -> str:
        """Mean and standard deviation over seeds, and how many diverged."""
        values = self.accuracies()
        lost = len(self.runs) - len(values)
        return mean_and_deviation(values) + (f" ({lost} of {len(self.runs)} diverged)" if lost else "")

    def megabytes(self, direction: str) -> float:
        """Megabytes over all clients and rounds, the mean over seeds."""
        series = [run.series(f"comm/total_{direction}_bytes") for run in self.finished]
        return statistics.mean(values[max(values)] for values in series) / 1e6 if series else math.nan


def final_accuracy(run: RunFolder) -> float:
    """The mean of the last tenth of the evaluations."""
    return last_tenth(list(run.series("val_acc").values()))


def choose_lr(setting: Setting, method: Method, rates: list[float], tell: Callable[[str], None]) -> float:
    """Choose the rate with the highest accuracy on held-out training examples, in runs that are not reported."""
    if len(rates) == 1:
        return rates[0]
    scores = {}
    for lr in rates:
        run = setting.run(method, lr, TUNING_SEED, data__init_args__val_fraction=0.2)
        scores[lr] = final_accuracy(run) if run.rounds >= setting.rounds else -1.0
        tell(f"{method.name}, lr {lr:g}: {100 * scores[lr]:.1f} % on held-out training examples")
    return max(scores, key=lambda lr: scores[lr])


def time_engines(setting: Setting, results: Iterable[Result], rounds: int, repeats: int) -> None:
    """Time rounds on both engines, on the same clients; all methods and engines take turns."""
    short = replace(setting, rounds=rounds + 1, reuse=False, output=setting.output / "timing")
    results = list(results)
    for _ in range(repeats):
        for result in results:
            for engine in ENGINES:
                run = short.run(result.method, result.lr, 0, trainer__engine=engine)
                # The first round warms up: memory, threads, the basis's first draw.
                result.seconds[engine] += [s for number, s in run.series("time/train_s").items() if number > 1]


def tabulate(results: list[Result], setting: Setting, tuned: bool) -> Table:
    """A line for each method."""
    table = Table(
        f"MNIST-5000, {setting.network}, 100 clients by Dirichlet(0.1), 10 per round; {setting.rounds} rounds, "
        f"{setting.overrides['trainer.local_epochs']} local epoch(s), {setting.seeds} seed(s)",
        ["method", "lr", "accuracy %", "MB up", "MB down", "MB up / round", "s / round seq.", "s / round vec."],
    )
    for result in results:
        up, down = result.megabytes("up"), result.megabytes("down")
        seconds = [f"{statistics.median(s):.3f}" if s else "-" for s in result.seconds.values()]
        sizes = [f"{up:,.1f}", f"{down:,.1f}", f"{up / setting.rounds:.2f}"]
        table.add(result.method.name, f"{result.lr:g}", result.accuracy(), *sizes, *seconds)
    chosen = "the best of the same grid for each method, on held-out training examples" if tuned else "the same for all"
    table.notes = [
        f"Accuracy: test set, mean of the last tenth of the evaluations, ± std over seeds ({setting.engine} engine). "
        f"Learning rate: {chosen}. Bytes: all clients together. Seconds: median, training only, "
        f"{torch.get_num_threads()} thread(s)."
    ]
    return table


def write_curves(results: list[Result], path: Path) -> None:
    """Write all evaluations, one a line."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "seed", "round", "up_bytes", "val_acc"])
        for result in results:
            for seed, run in enumerate(result.runs):
                up = run.series("comm/total_up_bytes")
                writer.writerows([result.method.name, seed, n, up[n], a] for n, a in run.series("val_acc").items())


def plot(results: list[Result], path: Path) -> None:
    """Draw accuracy against rounds and against bytes sent: means over seeds, with the range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    by_round, by_bytes = figure.subplots(1, 2, sharey=True)
    for result in results:
        series = [run.series("val_acc") for run in result.finished]
        if not series:
            continue
        rounds = sorted(series[0])
        columns = [[100 * values[number] for values in series] for number in rounds]
        sent = [run.series("comm/total_up_bytes") for run in result.finished]
        megabytes = [statistics.mean(values[number] for values in sent) / 1e6 for number in rounds]
        for axes, x in ((by_round, rounds), (by_bytes, megabytes)):
            means, lows, highs = [[of(column) for column in columns] for of in (statistics.mean, min, max)]
            draw_band(axes, x, means, lows, highs, label=result.method.name)
    by_round.set(xlabel="round", ylabel="test accuracy, %")
    by_bytes.set(xlabel="MB sent by all clients", xscale="log")
    by_round.legend()
    for axes in (by_round, by_bytes):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=[m.slug for m in METHODS], help="some of them; all by default")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", type=float, nargs="+", default=[0.05], help="one for all, or a grid")
    parser.add_argument("--backbone", default="lfl.models.McMahanCNN", help="class path of the network")
    parser.add_argument("--local_epochs", type=int, default=1)
    parser.add_argument("--engine", choices=ENGINES, default="sequential", help="of the runs that give accuracy")
    parser.add_argument("--timed_rounds", type=int, default=4, help="rounds timed in a run, after one to warm up")
    parser.add_argument("--timed_repeats", type=int, default=3, help="such runs for each method and engine")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch; 1 on a busy machine")
    parser.add_argument("--quick", action="store_true", help="an MLP, 3 rounds, 1 seed: everything once, no results")
    parser.add_argument("--reuse", action="store_true", help="take finished runs of the output folder as they are")
    parser.add_argument("--configs", type=Path, default=CONFIGS)
    parser.add_argument("--output", type=Path, default=Path("runs/compare"))
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.seeds, options.timed_rounds, options.timed_repeats = 3, 1, 1, 1
        options.backbone = "lfl.models.MLP"
    return options


def common_overrides(backbone: str, local_epochs: int) -> dict[str, object]:
    """Settings of the experiment, which override those of the config files."""
    return {
        "model.init_args.backbone": backbone,
        "data.init_args.source": "lfl.data.MNIST5000",
        "data.init_args.partitioner": "lfl.data.DirichletPartitioner",
        "data.init_args.partitioner.init_args.alpha": 0.1,
        "data.init_args.num_clients": 100,
        "data.init_args.batch_size": 10,
        "optimizer": "torch.optim.SGD",
        "trainer.participation": "lfl.participation.UniformParticipation",
        "trainer.participation.init_args.clients_per_round": 10,
        "trainer.local_epochs": local_epochs,
        "trainer.checkpoint": "null",
    }


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    torch.set_num_threads(options.threads)
    overrides = common_overrides(options.backbone, options.local_epochs)
    setting = Setting(
        options.configs, options.output, options.rounds, options.engine, options.seeds, options.reuse, overrides
    )
    chosen = [m for m in METHODS if not options.methods or m.slug in options.methods]
    tell = partial(print, file=sys.stderr, flush=True)
    results = [Result(method, choose_lr(setting, method, options.lr, tell), rounds=options.rounds) for method in chosen]
    for seed in range(options.seeds):
        for result in results:
            result.runs.append(setting.run(result.method, result.lr, seed))
            tell(f"seed {seed}, {result.method.name}: {100 * final_accuracy(result.runs[-1]):.1f} %")
    time_engines(setting, results, options.timed_rounds, options.timed_repeats)
    table = tabulate(results, setting, tuned=len(options.lr) > 1)
    table.write(options.output)
    write_curves(results, options.output / "curves.csv")
    plot(results, options.output / "curves.png")
    table.show()


if __name__ == "__main__":
    main()
