"""The stacks of two papers on MNIST-5000, each with what it is compared with: one table a study.

    python -m tools.papers.stacks compression             # FLSS and sign compression, alone and together
    python -m tools.papers.stacks optimization --jobs 2   # FedMRUR and the methods it is made of
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

from lfl.report.numbers import mean_and_deviation
from tools.papers.claims import Claim, ordered
from tools.papers.study import (
    Method,
    Overrides,
    Results,
    Study,
    accuracy,
    final,
    last,
    parse,
    run_studies,
    told_rounds_to,
)
from tools.table import Table

_DIRICHLET = "lfl.data.DirichletPartitioner"
_COSINE = "diag/cosine"
_DIAGNOSTICS: Overrides = (
    ("trainer.callbacks+", "lfl.callbacks.Diagnostics"),
    ("trainer.callbacks.init_args.every_n_rounds", 5),
)


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
        table.add(
            name,
            mean_and_deviation([100 * final(o, "val_acc") for o in outcomes]),
            told_rounds_to(outcomes, TARGET),
            mean_and_deviation([final(o, _COSINE) for o in outcomes], 3),
            mean_and_deviation([final(o, "diag/norm_ratio") for o in outcomes], 3),
            mean_and_deviation([final(o, "diag/drift") for o in outcomes], 2),
        )


def claim_optimization(results: Results) -> list[Claim]:
    pairs = [("FedAvg", "FedSAM"), ("FedCM", "MoFedSAM"), ("MoFedSAM", "FedMRUR-N"), ("MoFedSAM", "FedMRUR-H")]
    pairs += [("FedMRUR-N", "FedMRUR"), ("FedMRUR-H", "FedMRUR")]
    return [claim_above(*pair, "{higher} is better than {lower}", results) for pair in pairs]


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
            "FedAvg": Method("fedavg.yaml"),
            "FedAvg + FLSS": Method("flss.yaml"),
            "Sign EF": Method("sign_ef.yaml"),
            "Sign EF + FLSS": Method("sign_ef_flss.yaml"),
            "Top-k EF": Method("topk_ef.yaml"),
        },
        (*_NETWORK, *_SKEWED, *_DIAGNOSTICS),
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
            "FedAvg": Method("fedavg.yaml"),
            "FedSAM": Method("fedsam.yaml"),
            "FedCM": Method("fedcm.yaml"),
            "MoFedSAM": Method("mofedsam.yaml"),
            "FedMRUR-N": Method("fedmrur_n.yaml"),
            "FedMRUR-H": Method("fedmrur_h.yaml"),
            "FedMRUR": Method("fedmrur.yaml"),
        },
        (*_NETWORK, *_SKEWED, *_DIAGNOSTICS),
        rounds=150,
        evaluate_every=5,
        metrics=("val_acc", _COSINE, "diag/norm_ratio", "diag/drift"),
        tabulate=tabulate_optimization,
        claims=claim_optimization,
        columns=("method", "accuracy %", f"rounds to {100 * TARGET:g} %", "cosine of updates", "norm ratio", "drift"),
    ),
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    return parse(STUDIES, __doc__, "runs/stacks", arguments)


def main(arguments: list[str] | None = None) -> None:
    run_studies(STUDIES, options_of(arguments))


if __name__ == "__main__":
    main()
