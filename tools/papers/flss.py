"""The things FLSS depends on: its rank, its sampling, its warm-up, who takes part, and how different the clients are.

    python -m tools.papers.flss parts warmup noise classes --jobs 2
    python -m tools.papers.flss 10-of-20 50-of-50 10-of-50 50-of-100
    python -m tools.papers.flss epochs-1 epochs-5 dirichlet-0.5 dirichlet-1 lenet
    python -m tools.papers.flss parts --quick      # a look, in about a minute: no results

The setting of ``compressors``: all of 20 clients in every round of a small MLP on MNIST-5000, 160 rounds of which the
first 80 are the warm-up, R = 20, s = 5; each study changes one thing, as Tables 3 to 7 and Figure 4 of the paper do.
``lenet`` has another network, with a warm-up of 100 rounds, and the sign with and without FLSS beside.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace

from tools.papers import compressors
from tools.papers.kept import Quantities, Quantity
from tools.papers.study import (
    BOTH_WAYS,
    LENET,
    UP,
    Method,
    Overrides,
    Results,
    Study,
    accuracy_and_bytes,
    drawn,
    parse,
    partitioned,
    run_studies,
    within_bytes_of,
)
from tools.papers.tables import FLSS_SETTING, flss_setting

_OWN = "trainer.callbacks.init_args"
WARMUP, ROUNDS = 80, 160
FEDAVG = Method("fedavg.yaml")


def flss(**arguments: object) -> Method:
    """FLSS with some arguments other than the study's."""
    given = {"warmup_rounds": WARMUP, "rank": 20, "sample_every": 5, "attenuation": 1.0, **arguments}
    own = tuple((f"{_OWN}.{name}", value) for name, value in given.items())
    return Method("flss.yaml", own, short=((f"{_OWN}.warmup_rounds", 4),))


def measure(results: Results) -> Quantities:
    """Accuracy at the end, at FLSS's upload (of the first method that is one), and bytes."""
    reference = next(outcomes for name, outcomes in results.items() if name != "FedAvg")
    at_upload = {name: within_bytes_of(outcomes, reference, UP) for name, outcomes in results.items()}
    accuracy, *traffic = accuracy_and_bytes(results).items()
    return dict([accuracy, ("at FLSS's upload", Quantity(at_upload)), *traffic])


DIRICHLET = partitioned("DirichletPartitioner", alpha=0.1)


def study(
    title: str, methods: Mapping[str, Method], *changed: tuple[str, object], partition: Overrides = DIRICHLET
) -> Study:
    """A study with something changed in the setting of all of them."""
    setting: Overrides = (*FLSS_SETTING, *partition, *changed)
    return Study(
        f"MNIST-5000, MLP 784-100-10, {title}",
        methods,
        setting,
        rounds=ROUNDS,
        evaluate_every=4,
        metrics=("val_acc", *BOTH_WAYS),
        measure=measure,
        needs=tuple(name for name in methods if name != "FedAvg")[:1],
    )


PAIR = {"FedAvg": FEDAVG, "FLSS": flss()}
PARTS = {
    **PAIR,
    "R = 5": flss(rank=5),
    "R = 40": flss(rank=40),
    "s = none": flss(sample_every="null"),
    "s = 10, lambda 0.7": flss(sample_every=10, attenuation=0.7),
    "lambda 0.7": flss(attenuation=0.7),
    "lambda 0.5": flss(attenuation=0.5),
    "sr 3": flss(update_scale=3.0),
    "sr 10": flss(update_scale=10.0),
    "rate times 3": flss(rate_scale=3.0),
    "gradients": flss(project="gradients"),
}
_MORE = 40  # rounds after the warm-up, in the study of its length


def warmup(length: int) -> Method:
    """FLSS with a warm-up of some rounds, and as many rounds after it as the others."""
    return replace(flss(warmup_rounds=length), rounds=length + _MORE)


def people(clients: int, participants: int) -> Overrides:
    """Overrides for other numbers of clients and participants."""
    return (("data.init_args.num_clients", clients), drawn(participants))


_NOISE = {"class_path": "lfl.data.ClientLabelNoise", "init_args": {"num_classes": 10, "most": 0.4}}
_NOISY = ("data.init_args.client_changes", json.dumps([_NOISE]))
_ALL = "all of 20 clients"
_LENET_WARMUP = 100  # it is later at its plateau
_TWO_CLASSES = partitioned("ClassesPerClientPartitioner", classes_per_client=2)
STUDIES = {
    "parts": study(f"Dirichlet(0.1), {_ALL}", PARTS),
    "warmup": study(
        f"Dirichlet(0.1), {_ALL}, {_MORE} rounds after warm-up",
        {"FedAvg": FEDAVG, **{f"L = {length}": warmup(length) for length in (20, 40, 80, 120)}},
    ),
    "noise": study(f"Dirichlet(0.1), {_ALL}, 0 to 40 % wrong labels", PAIR, _NOISY),
    "classes": study(f"2 classes a client, {_ALL}", PAIR, partition=_TWO_CLASSES),
    "10-of-20": study("Dirichlet(0.1), 10 of 20 clients", PAIR, drawn(10)),
    "50-of-50": study("Dirichlet(0.1), all of 50 clients", PAIR, *people(50, 50)),
    "10-of-50": study("Dirichlet(0.1), 10 of 50 clients", PAIR, *people(50, 10)),
    "50-of-100": study("Dirichlet(0.1), 50 of 100 clients", PAIR, *people(100, 50)),
    **{
        f"epochs-{epochs}": study(
            f"Dirichlet(0.1), {_ALL}, {epochs} local epochs", PAIR, ("trainer.local_epochs", epochs)
        )
        for epochs in (1, 5)
    },
    "lenet": Study(
        f"MNIST-5000, LeNet-5, Dirichlet(0.1), {_ALL}, warm-up of {_LENET_WARMUP} rounds",
        compressors.with_and_without(_LENET_WARMUP),
        (*flss_setting(LENET, lr=0.1), *DIRICHLET),
        rounds=ROUNDS,
        evaluate_every=4,
        metrics=("val_acc", *BOTH_WAYS),
        measure=compressors.measure,
        needs=("FLSS",),
    ),
    **{
        f"dirichlet-{alpha:g}": study(
            f"Dirichlet({alpha:g}), {_ALL}", PAIR, partition=partitioned("DirichletPartitioner", alpha=alpha)
        )
        for alpha in (0.5, 1.0)
    },
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    return parse(STUDIES, __doc__, "flss", arguments)


def main(arguments: list[str] | None = None) -> None:
    run_studies(STUDIES, options_of(arguments))


if __name__ == "__main__":
    main()
