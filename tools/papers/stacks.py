"""The stacks of two papers on MNIST-5000, each with what it is compared with: one table a study.

    python -m tools.papers.stacks compression             # FLSS and sign compression, alone and together
    python -m tools.papers.stacks optimization --jobs 2   # FedMRUR and the methods it is made of
    python -m tools.papers.stacks compression --quick     # a look, in about a minute: no results

Every number comes from runs of ``lfl fit`` with files of ``configs/``, whose learning rates stay, and what a study
changes in all of them; a seed stands for the partition, the initial weights and every draw.
``lfl.callbacks.Diagnostics`` runs beside every method. The output folder gets the tables (CSV, Markdown), the report of
all runs with their curves, and the runs: one whose settings have a result is not made again.
"""

from __future__ import annotations

import argparse

from tools.papers.kept import Quantities
from tools.papers.study import (
    Method,
    Overrides,
    Results,
    Study,
    accuracy_and_bytes,
    final,
    parse,
    per_run,
    rounds_to,
    run_studies,
)

_DIRICHLET = "lfl.data.DirichletPartitioner"
_COSINE = "diag/cosine"
_DIAGNOSTICS: Overrides = (
    ("trainer.callbacks+", "lfl.callbacks.Diagnostics"),
    ("trainer.callbacks.init_args.every_n_rounds", 5),
)


def measure_compression(results: Results) -> Quantities:
    return {
        **accuracy_and_bytes(results),
        "cosine of updates": per_run(results, lambda outcome: final(outcome, _COSINE), digits=3),
        "effective rank": per_run(results, lambda outcome: final(outcome, "diag/trajectory/effective_rank")),
    }


TARGET = 0.9


def measure_optimization(results: Results) -> Quantities:
    return {
        "accuracy %": per_run(results, lambda outcome: 100 * final(outcome, "val_acc")),
        f"rounds to {100 * TARGET:g} %": per_run(results, lambda outcome: rounds_to(outcome, TARGET), digits=0),
        "cosine of updates": per_run(results, lambda outcome: final(outcome, _COSINE), digits=3),
        "norm ratio": per_run(results, lambda outcome: final(outcome, "diag/norm_ratio"), digits=3),
        "drift": per_run(results, lambda outcome: final(outcome, "diag/drift"), digits=2),
    }


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
        measure=measure_compression,
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
        measure=measure_optimization,
    ),
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    return parse(STUDIES, __doc__, "stacks", arguments)


def main(arguments: list[str] | None = None) -> None:
    run_studies(STUDIES, options_of(arguments))


if __name__ == "__main__":
    main()
