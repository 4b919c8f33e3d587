"""The communication costs that papers print, each with a short run whose ledger has the same cost.

FLSS's paper prints what one client uploads in the 200 rounds after warm-up, in parameters: bits over 32; in Table 8 in
all 400 rounds. The papers of SSF and FL-SSGD print no costs, but how many numbers travel in a round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lfl.callbacks import (
    FLSS,
    LBGM,
    MOON,
    STC,
    FedDC,
    FedDyn,
    FederatedCallback,
    FedGen,
    FedNTD,
    FetchSGD,
    Proximal,
    Scaffold,
    Sign,
)

UNITS = {"M": 1e6, "G": 1e9}


@dataclass(frozen=True)
class Cell:
    """A printed cost.

    Attributes:
        name: method and setting.
        paper: as printed, numbers of 32 bits: plain, or millions (``M``), or billions (``G``); empty for none.
        reason: why the ledger has another cost, where that is not how the cost was rounded.
    """

    name: str
    paper: str
    reason: str = ""

    @property
    def places(self) -> tuple[float, float]:
        """The printed number, and one of its last digit."""
        digits, _, unit = self.paper.partition(" ")
        mantissa, _, power = digits.partition("e")
        scale = UNITS.get(unit, 1.0) * 10.0 ** int(power or 0)
        last = 10.0 ** -len(mantissa.partition(".")[2])
        return float(mantissa.replace(",", "")) * scale, last * scale


@dataclass(frozen=True)
class NetworkCell(Cell):
    """A cost of FLSS's tables, whose run is one client on a few random images.

    Attributes:
        network: ``cnn``, ``resnet18`` or ``resnet50``.
        num_classes: 10 for CIFAR-10, 100 for CIFAR-100.
        stack: makes the callbacks, for D parameters and L rounds of warm-up; None for FedAvg.
        sample_every: FLSS's s; None for a fixed subspace.
        rank: FLSS's R; None without it, where all rounds are alike.
        varies: what is sent depends on the data, so that all 400 rounds are run.
        rounds_share: 1/2 for methods that the paper gives half of FedAvg's rounds, as each costs twice as much.
        counts_warmup: the cost is that of 400 rounds.
    """

    network: str = "cnn"
    num_classes: int = 10
    stack: Callable[[int, int], list[FederatedCallback]] | None = None
    sample_every: int | None = None
    rank: int | None = None
    varies: bool = False
    rounds_share: float = 1.0
    counts_warmup: bool = False


@dataclass(frozen=True)
class ProblemCell(Cell):
    """A cost of what a client sends in a round, on average, in a run of a file of ``configs/problems/``.

    Attributes:
        config: its name.
        first: the first round that is counted.
        last: the last one.
    """

    config: str = ""
    first: int = 1
    last: int = 4


def flss(s: int | None, rank: int = 50, signs: bool = False, all_rounds: bool = False) -> dict[str, Any]:
    """FLSS with a sampled round in s, and signs in rounds that are not projected."""

    def stack(dim: int, warmup_rounds: int) -> list[FederatedCallback]:
        return [FLSS(warmup_rounds, rank, s, warmup="auto"), *([Sign()] if signs else [])]

    return {"stack": stack, "sample_every": s, "rank": rank, "counts_warmup": all_rounds}


def codec(make: Callable[[int], FederatedCallback], **options: Any) -> dict[str, Any]:
    """One callback, made for D parameters."""
    return {"stack": lambda dim, warmup_rounds: [make(dim)], **options}


_SIGN = codec(lambda dim: Sign())
_FETCHSGD = codec(lambda dim: FetchSGD(5, dim // 20))  # a table of a quarter of the parameters
_STC = codec(lambda dim: STC(0.22))  # about a bit for a parameter: a gap and a sign take 4.55
_LBGM = codec(lambda dim: LBGM(0.05), varies=True, counts_warmup=True)
_ALIKE: list[tuple[str, dict[str, Any]]] = [
    ("FedAvg", {}),
    ("FedProx", codec(lambda dim: Proximal(0.01))),
    ("SCAFFOLD", codec(lambda dim: Scaffold(), rounds_share=0.5)),
    ("MOON", codec(lambda dim: MOON("backbone.features", 0.01, 1.0))),
    ("FedDyn", codec(lambda dim: FedDyn(0.5))),
    ("FedDC", codec(lambda dim: FedDC(0.5), rounds_share=0.5)),
    ("FedNTD", codec(lambda dim: FedNTD(0.001, 1.0))),
]
_FEDGEN = codec(lambda dim: FedGen("backbone.head", preset="pfllib", server_steps=1))
_GOLOMB = "paper: a bit a parameter; here k = 0.22 D in Golomb codes, longer where the largest entries stand together"
_RANDOM = "depends on data: on random images no update is like the last, all are sent; on MNIST 0.87 of FedAvg's"


def _table(network: str, num_classes: int, *costs: tuple[str, str, dict[str, Any]]) -> list[Cell]:
    title = {"cnn": "CNN", "resnet18": "ResNet-18", "resnet50": "ResNet-50"}[network]
    title = f"{title}, CIFAR-{num_classes}"
    return [
        NetworkCell(f"{name}; {title}", paper, network=network, num_classes=num_classes, **options)
        for name, paper, options in costs
    ]


CELLS: list[Cell] = [
    *_table(
        "cnn", 10,
        *((name, "0.17 G", options) for name, options in _ALIKE),
        ("FedGen", "", _FEDGEN | {"reason": "none printed; the generator comes down beside the model"}),
        ("FLSS, s = 5", "35.14 M", flss(5)),
        ("FetchSGD", "43.92 M", _FETCHSGD),
        ("sign + EF", "5.49 M", _SIGN),
        ("STC", "5.49 M", _STC | {"reason": _GOLOMB}),
        ("sign + EF + FLSS", "1.11 M", flss(5, signs=True)),
        ("LBGM, Dirichlet(0.1), 400 rounds", "0.21 G", _LBGM | {"reason": _RANDOM}),
        ("LBGM, Dirichlet(0.5) and (1), 400 rounds", "0.20 G", _LBGM | {"reason": _RANDOM}),
        ("FLSS, 400 rounds", "0.21 G", flss(5, all_rounds=True)),
    ),
    *_table(
        "cnn", 100,
        *((name, "0.18 G", options) for name, options in _ALIKE),
        ("FedGen", "", _FEDGEN | {"reason": "none printed; the generator comes down beside the model"}),
        ("FLSS, s = 5, lambda 0.5, 0.7 and 1", "37.00 M", flss(5)),
        ("FLSS, s = 5, R = 20", "36.98 M", flss(5, rank=20) | {"reason": "40 D alone are 36,988,320; R adds 3,200"}),
        ("FLSS, s = 5, R = 40", "36.99 M", flss(5, rank=40)),
        ("FLSS, s = 10", "18.50 M", flss(10)),
        ("FLSS, fixed subspace", "0.01 M", flss(None)),
        ("FetchSGD", "46.23 M", _FETCHSGD),
        ("sign + EF", "5.78 M", _SIGN),
        ("STC", "5.78 M", _STC | {"reason": _GOLOMB}),
        ("sign + EF + FLSS", "1.16 M", flss(5, signs=True)),
        ("LBGM, Dirichlet(0.1) and (0.5), 400 rounds", "0.27 G", _LBGM | {"reason": _RANDOM}),
        ("LBGM, Dirichlet(1), 400 rounds", "0.26 G", _LBGM | {"reason": _RANDOM}),
        ("FLSS, 400 rounds", "0.22 G", flss(5, all_rounds=True)),
    ),
    *_table(
        "resnet18", 10,
        ("FedAvg", "2.23 G", {}),
        ("FLSS, s = 5", "0.45 G", flss(5)),
        ("FetchSGD", "0.56 G", _FETCHSGD),
        ("sign + EF", "69.88 M", _SIGN),
        ("STC", "69.88 M", _STC | {"reason": _GOLOMB}),
        ("sign + EF + FLSS", "14.0 M", flss(5, signs=True)),
    ),
    *_table(
        "resnet18", 100,
        ("FedAvg", "2.24 G", {}),
        ("FLSS, s = 5, lambda 0.5, 0.7 and 1", "0.45 G", flss(5)),
        ("FLSS, s = 5, R = 20", "0.45 G", flss(5, rank=20)),
        ("FLSS, s = 5, R = 40", "0.45 G", flss(5, rank=40)),
        ("FLSS, s = 10", "0.22 G", flss(10)),
        ("FLSS, fixed subspace", "1e-5 G", flss(None)),
    ),
    *_table(
        "resnet50", 100,
        ("FedAvg", "4.74 G", {}),
        ("FLSS, s = 5, lambda 0.5, 0.7 and 1", "0.95 G", flss(5)),
        ("FLSS, s = 5, R = 20", "0.95 G", flss(5, rank=20)),
        ("FLSS, s = 5, R = 40", "0.95 G", flss(5, rank=40)),
        ("FLSS, s = 10", "0.47 G", flss(10)),
        ("FLSS, fixed subspace", "1e-5 G", flss(None)),
    ),
    ProblemCell("FedAvg, a round; SSF's toy, d = 100, m = 10", "1,000", config="matrix_regression_fedavg"),
    ProblemCell(
        "SCAFFOLD, a round; SSF's toy", "", "none printed; the control beside the update", "matrix_regression_scaffold"
    ),
    # Rounds after the first: every client has been there, and is charged what it missed.
    ProblemCell("SSF, a round; SSF's toy, r = 20", "200", config="matrix_regression_ssf", first=101, last=200),
    ProblemCell("FedSub, a round; SSF's toy, r = 20", "200", config="matrix_regression_fedsub", first=101, last=200),
    ProblemCell("FedAvg, a round; FL-SSGD's problem, d = 1,000", "1,000", config="robust_regression_fedavg"),
    ProblemCell("FL-SSGD, a round; FL-SSGD's problem, l_i = 100 i", "550", config="robust_regression_fl_ssgd"),
    ProblemCell(
        "FL-SSVRG, a round of an epoch of 50; FL-SSGD's problem, l = 100, l_i = 100 i", "639",
        config="robust_regression_fl_ssvrg", last=50,
    ),
    ProblemCell(
        "Top-k + EF, a round; FL-SSGD's problem, k_i = 100 i", "550",
        "indices of 10 bits beside values of 64, of which the paper says nothing", "robust_regression_topk",
    ),
    ProblemCell("S-SNAG-EF, a round; FL-SSGD's problem, 100 i", "550", config="robust_regression_s_snag_ef"),
]  # fmt: skip
