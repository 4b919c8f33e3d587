"""The communication costs of the FLSS paper, counted by the ledger of real rounds.

    python -m tools.papers.flss_costs
    python -m tools.papers.flss_costs --networks cnn resnet18 --warmup_rounds 55 --threads 2

The paper's cost is what one client uploads in the 200 rounds after warm-up, in parameters: bits over 32; in Table 8 it
is that of all 400 rounds. Here one client trains the paper's network on a few random images, one step a round;
``comm/up_bytes`` of each round is what was really encoded. The warm-up is shorter than the paper's 200 rounds, but long
enough for all R directions. With s = 5 that is 40 D + 160 R: 35,149,520 and 36,996,320 of the CNN, of which the paper
seems to cut the first to 35.14 and to round the second to 37.00.

The CNN (two convolutions of 32 and 64 channels, 512 units; D = 878,538 with 10 classes, 924,708 with 100) goes through
all rounds. Of the ResNets one period of s rounds is measured, and stands for all; they have GroupNorm, which has as
many parameters as BatchNorm, and no statistics, which the paper does not count. FLSS on ResNet-18 takes 7 GB of memory
and some minutes, on ResNet-50 twice that. FedProx, MOON, FedDyn and FedNTD send what FedAvg does. LBGM's cost depends
on the data: on random images no update is like the last, and it sends what FedAvg does.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from lfl.aggregation import MeanAggregator
from lfl.callbacks import FLSS, LBGM, STC, FederatedCallback, FetchSGD, Scaffold, Sign
from lfl.data import DatasetSource, FederatedDataModule, IIDPartitioner
from lfl.loggers.csv import read_rows
from lfl.models import Classifier, McMahanCNN, ResNet
from lfl.participation import FullParticipation
from lfl.storage.folders import METRICS_FILE
from tools.table import Table
from tools.training import fitted

_PAPER_WARMUP = 200  # rounds of it, of which Table 8 counts the uploads


@dataclass(frozen=True)
class Cell:
    """A cost of the paper's tables.

    Attributes:
        name: the row.
        published: as printed, in parameters.
        network: ``cnn``, ``resnet18`` or ``resnet50``.
        num_classes: 10 for CIFAR-10, 100 for CIFAR-100.
        projects: FLSS; without it every round is alike.
        sample_every: its s.
        rank: its R; None for the setting's.
        signs: with sign and error feedback in full rounds.
        codec: what it sends with in place of FLSS and the sign, made from D.
        varies: what is sent depends on the data, so that every round is run.
        controls: SCAFFOLD; its rounds are half as many, as the paper compares it at FedAvg's cost.
        counts_warmup: the cost is that of 400 rounds.
    """

    name: str
    published: str = ""
    network: str = "cnn"
    num_classes: int = 10
    projects: bool = True
    sample_every: int | None = None
    rank: int | None = None
    signs: bool = False
    codec: Callable[[int], FederatedCallback] | None = None
    varies: bool = False
    controls: bool = False
    counts_warmup: bool = False

    def stack(self, setting: Setting, dim: int) -> list[FederatedCallback]:
        """The callbacks of the method, for D parameters."""
        if self.codec is not None:
            return [self.codec(dim)]
        rank = self.rank or setting.rank
        flss = [FLSS(setting.warmup_rounds, rank, self.sample_every, warmup="auto")] if self.projects else []
        return [*([Scaffold()] if self.controls else []), *flss, *([Sign()] if self.signs else [])]


def _fetchsgd(dim: int) -> FetchSGD:
    """A table of a quarter of the parameters, as the paper's cost says."""
    return FetchSGD(5, dim // 20)


def _stc(dim: int) -> STC:
    """About one bit for a parameter, as the paper's cost says: a gap and a sign take 4.55 bits."""
    del dim
    return STC(0.22)


def _lbgm(dim: int) -> LBGM:
    del dim
    return LBGM(0.05)


_FETCHSGD: dict[str, Any] = {"projects": False, "codec": _fetchsgd}
_STC: dict[str, Any] = {"projects": False, "codec": _stc}
_LBGM: dict[str, Any] = {"projects": False, "codec": _lbgm, "varies": True, "counts_warmup": True}


def _cells(network: str, num_classes: int, *costs: tuple[str, str, dict[str, Any]]) -> list[Cell]:
    title = f"CIFAR-{num_classes}{'' if network == 'cnn' else f', {network}'}"
    return [Cell(f"{name}, {title}", published, network, num_classes, **options) for name, published, options in costs]


CELLS = [
    *_cells(
        "cnn", 10,
        ("FedAvg", "0.17 G", {"projects": False}),
        ("SCAFFOLD, half the rounds", "0.17 G", {"projects": False, "controls": True}),
        ("FLSS, s = 5", "35.14 M", {"sample_every": 5}),
        ("sign + EF", "5.49 M", {"projects": False, "signs": True}),
        ("sign + EF + FLSS", "1.11 M", {"sample_every": 5, "signs": True}),
        ("FetchSGD", "43.92 M", _FETCHSGD),
        ("STC", "5.49 M", _STC),
        ("FLSS, 400 rounds", "0.21 G", {"sample_every": 5, "counts_warmup": True}),
        ("LBGM, 400 rounds", "0.20 G to 0.27 G", _LBGM),
    ),
    *_cells(
        "cnn", 100,
        ("FedAvg", "0.18 G", {"projects": False}),
        ("FLSS, s = 5", "37.00 M", {"sample_every": 5}),
        ("FLSS, s = 5, R = 20", "36.98 M", {"sample_every": 5, "rank": 20}),
        ("FLSS, s = 5, R = 40", "36.99 M", {"sample_every": 5, "rank": 40}),
        ("FLSS, s = 10", "18.50 M", {"sample_every": 10}),
        ("FLSS, fixed subspace", "0.01 M", {}),
        ("sign + EF", "5.78 M", {"projects": False, "signs": True}),
        ("sign + EF + FLSS", "1.16 M", {"sample_every": 5, "signs": True}),
        ("FetchSGD", "46.23 M", _FETCHSGD),
        ("STC", "5.78 M", _STC),
        ("FLSS, 400 rounds", "0.22 G", {"sample_every": 5, "counts_warmup": True}),
        ("LBGM, 400 rounds", "0.20 G to 0.27 G", _LBGM),
    ),
    *_cells(
        "resnet18", 10,
        ("FedAvg", "2.23 G", {"projects": False}),
        ("FLSS, s = 5", "0.45 G", {"sample_every": 5}),
        ("sign + EF", "69.88 M", {"projects": False, "signs": True}),
        ("sign + EF + FLSS", "14.0 M", {"sample_every": 5, "signs": True}),
    ),
    *_cells(
        "resnet18", 100,
        ("FedAvg", "2.24 G", {"projects": False}),
        ("FLSS, s = 5", "0.45 G", {"sample_every": 5}),
        ("FLSS, s = 10", "0.22 G", {"sample_every": 10}),
        ("FLSS, fixed subspace", "1e-5 G", {}),
    ),
    *_cells(
        "resnet50", 100,
        ("FedAvg", "4.74 G", {"projects": False}),
        ("FLSS, s = 5", "0.95 G", {"sample_every": 5}),
        ("FLSS, s = 10", "0.47 G", {"sample_every": 10}),
        ("FLSS, fixed subspace", "1e-5 G", {}),
    ),
]  # fmt: skip

NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "cnn": lambda num_classes: McMahanCNN(in_channels=3, image_size=32, num_classes=num_classes, padding=0),
    "resnet18": lambda num_classes: ResNet(depth=18, num_classes=num_classes, norm="group"),
    "resnet50": lambda num_classes: ResNet(depth=50, num_classes=num_classes, norm="group"),
}


@dataclass(frozen=True)
class Setting:
    """Size of a run.

    Attributes:
        rank: R.
        warmup_rounds: L, at least R.
        rounds: those after warm-up, which are counted.
        measured: how many of them are run, and stand for all; None for all.
        examples: of the client, two a round.
    """

    rank: int = 50
    warmup_rounds: int = 55
    rounds: int = 200
    measured: int | None = None
    examples: int = 128

    def of(self, cell: Cell) -> Setting:
        """That of a cell: where all rounds are alike, or the network is large, a period is enough."""
        period = cell.sample_every or 2
        are_alike = not (cell.projects or cell.varies)
        large = replace(self, measured=period) if cell.network != "cnn" or are_alike else self
        return large if cell.projects else replace(large, warmup_rounds=0)


def uploaded(cell: Cell, backbone: nn.Module, setting: Setting, channels: int, side: int, num_classes: int) -> float:
    """Parameters that one client uploads after warm-up, or in all rounds."""
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(setting.examples, channels, side, side, generator=draws)
    images = TensorDataset(inputs, torch.randint(num_classes, (setting.examples,), generator=draws))
    measured = setting.rounds if setting.measured is None else setting.measured
    last = setting.warmup_rounds + measured
    with fitted(
        Classifier(backbone, lr=0.01),
        FederatedDataModule(DatasetSource(images, images, num_classes), IIDPartitioner(), 1, batch_size=2),
        engine="sequential",
        max_rounds=last,
        participation=FullParticipation(),
        local_steps=1,
        aggregator=MeanAggregator("uniform"),
        callbacks=cell.stack(setting, sum(parameter.numel() for parameter in backbone.parameters())),
        check_val_every_n_rounds=last,
    ) as trainer:
        rows = read_rows(Path(trainer.log_dir) / METRICS_FILE)
        counts = [metrics["comm/up_bytes"] / 4 for _, metrics in rows]
    warmup, after = counts[: setting.warmup_rounds], counts[setting.warmup_rounds :]
    total = sum(after) / measured * setting.rounds / (2 if cell.controls else 1)
    whole = warmup or after  # without a warm-up of its own its rounds are those of the others
    return total + (sum(whole) / len(whole) * _PAPER_WARMUP if cell.counts_warmup else 0.0)


def cost_table(setting: Setting, networks: list[str], words: list[str] | None = None) -> Table:
    """A row for each cell of the networks; where there are words, for those whose name has one of them."""
    table = Table(
        f"Uploads of one client in {setting.rounds} rounds after warm-up, R = {setting.rank}",
        ["method", "D", "parameters", "millions", "paper", "seconds"],
    )
    chosen = [cell for cell in CELLS if cell.network in networks and (not words or any(w in cell.name for w in words))]
    for cell in chosen:
        gc.collect()  # the last cell's run, with D R numbers
        started = time.perf_counter()
        backbone = NETWORKS[cell.network](cell.num_classes)
        count = uploaded(cell, backbone, setting.of(cell), channels=3, side=32, num_classes=cell.num_classes)
        dim = sum(parameter.numel() for parameter in backbone.parameters())
        seconds = time.perf_counter() - started
        table.add(cell.name, f"{dim:,}", f"{count:,.0f}", f"{count / 1e6:.2f}", cell.published, f"{seconds:.0f}")
    return table


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=["cnn"], help="those whose cells are made")
    parser.add_argument("--only", nargs="+", help="words of which a cell's name must have one; all cells")
    parser.add_argument("--rank", type=int, default=Setting.rank, help="R")
    parser.add_argument("--warmup_rounds", type=int, default=Setting.warmup_rounds, help="L, at least R")
    parser.add_argument("--rounds", type=int, default=Setting.rounds, help="rounds after warm-up; the paper counts 200")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.add_argument("--output", type=Path, default=Path("runs/flss_costs"), help="folder of the table's files")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    torch.set_num_threads(options.threads)
    table = cost_table(Setting(options.rank, options.warmup_rounds, options.rounds), options.networks, options.only)
    table.show()
    table.write(options.output)


if __name__ == "__main__":
    main()
