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
import statistics

from lfl.report.numbers import mean_and_deviation
from tools.papers.claims import Claim, difference
from tools.papers.study import (
    BOTH_WAYS,
    UP,
    Method,
    Overrides,
    Results,
    Study,
    final,
    parse,
    partitioned,
    run_studies,
    sent,
    within,
)
from tools.papers.tables import FLSS_SETTING, callback, stack
from tools.table import Table

_FLSS_NAME = "FLSS"
_READINGS = ("at the end", "at FLSS's upload", "at FLSS's upload and download")


def readings(results: Results, name: str) -> list[list[float]]:
    """Accuracies in percent of a method in the three readings, each by seed."""
    found = []
    for outcome, flss in zip(results[name], results[_FLSS_NAME], strict=True):
        at_equal = (within(outcome, directions, sent(flss, directions)) for directions in (UP, BOTH_WAYS))
        found.append([100 * final(outcome, "val_acc"), *(100 * value for value in at_equal)])
    return [list(values) for values in zip(*found, strict=True)]


def tabulate(results: Results, table: Table) -> None:
    """Accuracy in the three readings, and what is sent."""
    for name, outcomes in results.items():
        up, down = (statistics.mean(sent(o, (way,)) for o in outcomes) / 1e6 for way in BOTH_WAYS)
        table.add(name, *map(mean_and_deviation, readings(results, name)), f"{up:.1f}", f"{down:.1f}")


def claims(results: Results) -> list[Claim]:
    """FLSS beside FedAvg and beside each compressor, and on top of the sign, in each reading."""
    ours = readings(results, _FLSS_NAME)
    made = []
    for name in results:
        if name == _FLSS_NAME:
            continue
        for reading, higher, lower in zip(_READINGS, ours, readings(results, name), strict=True):
            made.append(difference(f"FLSS is better than {name} {reading}", higher, lower))
    pair = (readings(results, name)[0] for name in ("Sign + EF + FLSS", "Sign + EF"))
    return [*made, difference("Sign + EF + FLSS is better than Sign + EF at the end", *pair)]


def study(alpha: float) -> Study:
    """All compressors on one partition."""
    own = "trainer.callbacks.init_args"
    subspace: Overrides = ((f"{own}.warmup_rounds", 80), (f"{own}.rank", 20), (f"{own}.attenuation", 1.0))
    flss = callback("FLSS", warmup_rounds=80, rank=20, sample_every=5, attenuation=1.0)
    sign = callback("Sign", error_feedback=True, scope="global")
    return Study(
        f"MNIST-5000, MLP 784-100-10, Dirichlet({alpha:g}), all of 20 clients, warm-up of 80 rounds",
        {
            "FedAvg": Method("fedavg.yaml"),
            _FLSS_NAME: Method("flss.yaml", subspace),
            "random subspace": Method("flss.yaml", (*subspace, (f"{own}.subspace", "random"))),
            "Sign + EF": Method("sign_ef.yaml"),
            "Sign + EF + FLSS": Method("sign_ef_flss.yaml", stack(flss, sign)),
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
        tabulate=tabulate,
        claims=claims,
        columns=("method", *(f"accuracy % {reading}" for reading in _READINGS), "MB up", "MB down"),
        clock=UP[0],
    )


STUDIES = {"dirichlet0.1": study(0.1), "dirichlet0.5": study(0.5)}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    return parse(STUDIES, __doc__, "runs/compressors", arguments)


def main(arguments: list[str] | None = None) -> None:
    run_studies(STUDIES, options_of(arguments))


if __name__ == "__main__":
    main()
