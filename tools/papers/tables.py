"""The method tables of two papers on MNIST-5000: FedMRUR's Tables 2 and 3, and the left half of FLSS's Table 1.

    python -m tools.papers.tables fedmrur-path2 fedmrur-dirichlet --seeds 1 --jobs 2
    python -m tools.papers.tables flss-dirichlet0.1 flss-dirichlet0.5 --seeds 1
    python -m tools.papers.tables flss-dirichlet0.1 --quick     # a look, in about a minute: no results

Every number comes from runs of ``lfl fit`` with files of ``configs/`` and what a study changes in all of them, as those
of ``stacks``. FedMRUR's setting: LeNet-5 with GroupNorm, 10 of 100 clients, the paper's rate, weight decay and alpha; a
faster decay and a smaller rho than the paper's, for 300 rounds of a small network. FLSS's: all of 20 clients in every
round, as in the paper, on a small MLP.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import partial

from tools.papers.kept import Quantities
from tools.papers.study import (
    BOTH_WAYS,
    LENET_NORM,
    Method,
    Overrides,
    Results,
    Study,
    accuracy_and_bytes,
    drawn,
    final,
    mlp,
    parse,
    partitioned,
    per_run,
    rounds_to,
    run_studies,
    sent,
    within,
)

_TARGETS = (0.85, 0.9, 0.95)


def measure_fedmrur(results: Results) -> Quantities:
    """Accuracy (Table 2) and rounds to three accuracies (Table 3)."""
    return {
        "accuracy %": per_run(results, lambda outcome: 100 * final(outcome, "val_acc")),
        **{
            f"rounds to {100 * target:g} %": per_run(results, partial(rounds_to, target=target), digits=0)
            for target in _TARGETS
        },
    }


def measure_flss(results: Results) -> Quantities:
    """Accuracy at the end, and where a method has sent as much up and down as FedAvg has at the end."""
    budget = statistics.mean(sent(outcome, BOTH_WAYS) for outcome in results["FedAvg"])
    accuracy, *traffic = accuracy_and_bytes(results).items()
    at_equal = per_run(results, lambda outcome: 100 * within(outcome, BOTH_WAYS, budget))
    return dict([accuracy, ("at FedAvg's traffic", at_equal), *traffic])


_MNIST: Overrides = (("data.init_args.source", "lfl.data.MNIST5000"),)
_UNIFORM: Overrides = (
    ("trainer.participation", "lfl.participation.UniformParticipation"),
    ("trainer.aggregator.init_args.weighting", "uniform"),
)


# Of which ten take part in a round, where a study does not say otherwise.
FEDMRUR_SETTING: Overrides = (
    *_MNIST,
    *_UNIFORM,
    *LENET_NORM,
    ("data.init_args.num_clients", 100),
    ("data.init_args.batch_size", 10),
    ("trainer.local_epochs", 3),
    ("optimizer.init_args.lr", 0.1),
    ("optimizer.init_args.weight_decay", 5e-4),
    ("lr_scheduler", "torch.optim.lr_scheduler.ExponentialLR"),
    ("lr_scheduler.init_args.gamma", 0.99),
)


def callback(name: str, **arguments: object) -> dict[str, object]:
    """A callback of ``lfl`` as a file of settings has it."""
    return {"class_path": f"lfl.callbacks.{name}", "init_args": arguments}


def stack(*callbacks: dict[str, object]) -> Overrides:
    """Overrides that replace all callbacks of a file: a setting of one of several has no name on the command line."""
    return (("trainer.callbacks", json.dumps(callbacks)),)


_HYPERBOLIC = callback("HyperbolicRegularization", layer="backbone.features")
_SAM = callback("SharpnessAware", rho=0.1)
_MOMENTUM = callback("ClientMomentum", alpha=0.1, momentum_from="aggregate")


def fedmrur(title: str, partition: Overrides) -> Study:
    """The methods of FedMRUR's Tables 2 and 3 on one partition."""
    return Study(
        f"MNIST-5000, LeNet-5 with GroupNorm, {title}, 10 of 100 clients",
        {
            "FedAvg": Method("fedavg.yaml"),
            "FedExP": Method("fedexp.yaml"),
            "FedProx": Method("fedprox.yaml"),
            "SCAFFOLD": Method("scaffold.yaml"),
            "FedCM": Method("fedcm.yaml"),
            "MoFedSAM": Method("mofedsam.yaml", stack(_SAM, callback("ClientMomentum", alpha=0.1))),
            "FedMRUR": Method("fedmrur.yaml", stack(_HYPERBOLIC, _SAM, _MOMENTUM)),
            "FedMRUR, plain momentum": Method(
                "fedmrur.yaml",
                stack(_HYPERBOLIC, _SAM, callback("ClientMomentum", alpha=0.1)),
            ),
        },
        (*FEDMRUR_SETTING, drawn(10), *partition),
        rounds=300,
        evaluate_every=5,
        metrics=("val_acc",),
        measure=measure_fedmrur,
    )


def flss_setting(network: Overrides, lr: float) -> Overrides:
    """The clients of FLSS's studies, with a network and a learning rate."""
    return (
        *_MNIST,
        *_UNIFORM,
        *network,
        ("data.init_args.num_clients", 20),
        ("data.init_args.batch_size", 20),
        drawn(20),
        ("trainer.local_epochs", 2),
        ("optimizer.init_args.lr", lr),
    )


FLSS_SETTING = flss_setting(mlp(100), lr=0.2)


def flss(alpha: float) -> Study:
    """The methods of the left half of FLSS's Table 1 on one partition."""
    own = "trainer.callbacks.init_args"
    return Study(
        f"MNIST-5000, MLP 784-100-10, Dirichlet({alpha:g}), all of 20 clients",
        {
            "FedAvg": Method("fedavg.yaml"),
            "FedProx": Method("fedprox.yaml", ((f"{own}.mu", 0.01),)),
            "SCAFFOLD": Method("scaffold.yaml"),
            "MOON": Method("moon.yaml", ((f"{own}.mu", 0.01), (f"{own}.tau", 1.0))),
            "FedDyn": Method("feddyn.yaml", ((f"{own}.alpha", 0.5),)),
            "FedDC": Method("feddc.yaml", ((f"{own}.alpha", 0.5),)),
            "FedGen": Method("fedgen.yaml"),
            "FedNTD": Method("fedntd.yaml", ((f"{own}.beta", 0.001), (f"{own}.tau", 1.0))),
            "FedAvg + FLSS": Method("flss.yaml", ((f"{own}.warmup_rounds", 80), (f"{own}.rank", 20))),
        },
        (*FLSS_SETTING, *partitioned("DirichletPartitioner", alpha=alpha)),
        rounds=160,
        evaluate_every=4,
        metrics=("val_acc", *BOTH_WAYS),
        measure=measure_flss,
        needs=("FedAvg",),
    )


STUDIES = {
    "fedmrur-path2": fedmrur("2 classes per client", partitioned("ClassesPerClientPartitioner", classes_per_client=2)),
    "fedmrur-dirichlet": fedmrur("equal-size Dirichlet(0.3)", partitioned("EqualDirichletPartitioner", alpha=0.3)),
    "flss-dirichlet0.1": flss(0.1),
    "flss-dirichlet0.5": flss(0.5),
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    return parse(STUDIES, __doc__, "tables", arguments)


def main(arguments: list[str] | None = None) -> None:
    run_studies(STUDIES, options_of(arguments))


if __name__ == "__main__":
    main()
