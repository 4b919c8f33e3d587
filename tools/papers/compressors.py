"""FLSS where its paper puts it, beside every compressor it is compared with, at equal bytes.

    python -m tools.papers.compressors dirichlet0.1 dirichlet0.5 --jobs 2
    python -m tools.papers.compressors dirichlet0.1 --quick     # a look, in about a minute: no results

All of 20 clients take part in every round and the warm-up ends near the plateau, as in the paper (Table 1, right half:
400 rounds, 200 of them warm-up), on a small MLP. What is claimed is accuracy for bytes. So a method is read three
times: at its end; where it has sent as much up as FLSS has at its end; and where it has sent as much up and down.
A seed gives all methods the same partition, initial weights and draws: differences to FedAvg are paired by seed.

The shares are those of the paper: STC and Top-k send about one bit for a parameter, as the sign does, and FetchSGD's
table has a quarter of the parameters; LBGM's threshold is 0.05. QSGD has 16 levels. The learning rate is FedAvg's for
all, but FetchSGD's momentum is 0.5, as in ``configs/fetchsgd.yaml``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tools.papers.kept import Quantities, Quantity
from tools.papers.study import (
    BOTH_WAYS,
    UP,
    Method,
    Overrides,
    Results,
    Study,
    accuracy_and_bytes,
    final,
    parse,
    partitioned,
    run_studies,
    within_bytes_of,
)
from tools.papers.tables import FLSS_SETTING, callback, stack

_FLSS_NAME, _SIGN = "FLSS", "Sign + EF"
_LOOK = 4  # rounds of warm-up where a run is cut short
_WITH_AND_WITHOUT = ((_FLSS_NAME, "FedAvg"), (f"{_SIGN} + FLSS", _SIGN))
_READINGS = ("at the end", "at FLSS's upload", "at FLSS's upload and download")


def readings(results: Results, name: str) -> list[list[float]]:
    """Accuracies in percent of a method in the three readings, each by seed."""
    outcomes, flss = results[name], results[_FLSS_NAME]
    at_end = [100 * final(outcome, "val_acc") for outcome in outcomes]
    return [at_end, *(within_bytes_of(outcomes, flss, directions) for directions in (UP, BOTH_WAYS))]


def measure(results: Results) -> Quantities:
    """Accuracy in the three readings, by how much FLSS is ahead by seed, and what is sent."""
    read = {name: readings(results, name) for name in results}
    accuracies = {
        f"accuracy % {reading}": Quantity({name: values[number] for name, values in read.items()})
        for number, reading in enumerate(_READINGS)
    }
    pairs = [(ours, theirs) for ours, theirs in _WITH_AND_WITHOUT if {ours, theirs} <= read.keys()]
    leads = {
        "FLSS's lead at the end": Quantity(_leads(read, 0)),
        "FLSS's lead at its upload": Quantity(_leads(read, 1)),
        "lead at the end": Quantity(
            {f"{ours} over {theirs}": _ahead(read[ours][0], read[theirs][0]) for ours, theirs in pairs}
        ),
    }
    traffic = {name: quantity for name, quantity in accuracy_and_bytes(results).items() if "MB" in name}
    return {**accuracies, **leads, **traffic}


def _leads(read: Mapping[str, list[list[float]]], reading: int) -> dict[str, list[float]]:
    """The lead of FLSS over each other method in a reading, by seed."""
    ours = read[_FLSS_NAME][reading]
    return {name: _ahead(ours, values[reading]) for name, values in read.items() if name != _FLSS_NAME}


def _ahead(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(ours, theirs, strict=True)]


def with_and_without(warmup: int) -> dict[str, Method]:
    """FedAvg and the sign with error feedback, each with and without FLSS with a warm-up of so many rounds."""
    own = "trainer.callbacks.init_args"
    subspace: Overrides = ((f"{own}.warmup_rounds", warmup), (f"{own}.rank", 20), (f"{own}.attenuation", 1.0))
    return {
        "FedAvg": Method("fedavg.yaml"),
        _FLSS_NAME: Method("flss.yaml", subspace, short=((f"{own}.warmup_rounds", _LOOK),)),
        _SIGN: Method("sign_ef.yaml"),
        f"{_SIGN} + FLSS": Method("sign_ef_flss.yaml", _sign_with_flss(warmup), short=_sign_with_flss(_LOOK)),
    }


def _sign_with_flss(warmup: int) -> Overrides:
    flss = callback("FLSS", warmup_rounds=warmup, rank=20, sample_every=5, attenuation=1.0)
    return stack(flss, callback("Sign", error_feedback=True, scope="global"))


def study(alpha: float) -> Study:
    """All compressors on one partition."""
    own = "trainer.callbacks.init_args"
    methods = with_and_without(80)
    subspace = methods[_FLSS_NAME]
    randomly = replace(subspace, overrides=(*subspace.overrides, (f"{own}.subspace", "random")))
    return Study(
        f"MNIST-5000, MLP 784-100-10, Dirichlet({alpha:g}), all of 20 clients, warm-up of 80 rounds",
        {
            "FedAvg": methods.pop("FedAvg"),
            _FLSS_NAME: methods.pop(_FLSS_NAME),
            "random subspace": randomly,
            **methods,
            "STC": Method("stc.yaml", ((f"{own}.k", 0.22),)),
            "FetchSGD": Method("fetchsgd.yaml", ((f"{own}.columns", 4000),)),
            "LBGM": Method("lbgm.yaml", ((f"{own}.threshold", 0.05),)),
            "QSGD": Method("qsgd.yaml"),
            "Top-k + EF": Method("topk_ef.yaml", ((f"{own}.k", 0.02),)),
        },
        (*FLSS_SETTING, *partitioned("DirichletPartitioner", alpha=alpha)),
        rounds=160,
        evaluate_every=4,
        metrics=("val_acc", *BOTH_WAYS),
        measure=measure,
        needs=(_FLSS_NAME,),
    )


STUDIES = {"dirichlet0.1": study(0.1), "dirichlet0.5": study(0.5)}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    return parse(STUDIES, __doc__, "compressors", arguments)


def main(arguments: list[str] | None = None) -> None:
    run_studies(STUDIES, options_of(arguments))


if __name__ == "__main__":
    main()
