"""The communication costs of the FLSS paper, counted by the ledger of real rounds.

    python -m tools.papers.flss_costs
    python -m tools.papers.flss_costs --warmup_rounds 55 --threads 2

The paper's cost is what one client uploads in the 200 rounds after warm-up, in parameters: bits over 32. Here one
client trains the paper's CNN (two convolutions of 32 and 64 channels, 512 units; D = 878,538 with 10 classes, 924,708
with 100) on a few random images, one step a round; ``comm/up_bytes`` of each round is what was really encoded. The
warm-up is shorter than the paper's 200 rounds, but long enough for all R directions. With s = 5 that is 40 D + 160 R:
35,149,520 and 36,996,320, of which the paper seems to cut the first to 35.14 and to round the second to 37.00.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from lfl.aggregation import MeanAggregator
from lfl.callbacks import FLSS, FederatedCallback, Sign
from lfl.data import DatasetSource, FederatedDataModule, IIDPartitioner
from lfl.loggers.csv import METRICS_FILE, read_rows
from lfl.models import Classifier, McMahanCNN
from lfl.participation import FullParticipation
from tools.table import Table
from tools.training import fitted


@dataclass(frozen=True)
class Cell:
    """A cost of the paper's Tables 1 and 4.

    Attributes:
        name: the row.
        sample_every: s.
        signs: with sign and error feedback in full rounds.
        num_classes: 10 for CIFAR-10, 100 for CIFAR-100.
        published: millions of parameters, as printed.
    """

    name: str
    sample_every: int | None
    signs: bool = False
    num_classes: int = 10
    published: str = ""


CELLS = [
    Cell("FLSS, s = 5, CIFAR-10", 5, published="35.14"),
    Cell("FLSS, s = 5, CIFAR-100", 5, num_classes=100, published="37.00"),
    Cell("FLSS, s = 10, CIFAR-100", 10, num_classes=100, published="18.50"),
    Cell("FLSS, fixed subspace, CIFAR-100", None, num_classes=100, published="0.01"),
    Cell("sign + EF + FLSS, CIFAR-10", 5, signs=True, published="1.11"),
    Cell("sign + EF + FLSS, CIFAR-100", 5, signs=True, num_classes=100, published="1.16"),
]


@dataclass(frozen=True)
class Setting:
    """Size of a run.

    Attributes:
        rank: R.
        warmup_rounds: L, at least R.
        rounds: those after warm-up, which are counted.
        examples: of the client, two a round.
    """

    rank: int = 50
    warmup_rounds: int = 55
    rounds: int = 200
    examples: int = 128


def uploaded(cell: Cell, backbone: nn.Module, setting: Setting, channels: int, side: int, num_classes: int) -> float:
    """Parameters that one client uploads after warm-up."""
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(setting.examples, channels, side, side, generator=draws)
    images = TensorDataset(inputs, torch.randint(num_classes, (setting.examples,), generator=draws))
    stack: list[FederatedCallback] = [FLSS(setting.warmup_rounds, setting.rank, cell.sample_every)]
    with fitted(
        Classifier(backbone, lr=0.01),
        FederatedDataModule(DatasetSource(images, images, num_classes), IIDPartitioner(), 1, batch_size=2),
        engine="sequential",
        max_rounds=setting.warmup_rounds + setting.rounds,
        participation=FullParticipation(),
        local_steps=1,
        aggregator=MeanAggregator("uniform"),
        callbacks=[*stack, Sign()] if cell.signs else stack,
        check_val_every_n_rounds=setting.warmup_rounds + setting.rounds,
    ) as trainer:
        rows = list(read_rows(Path(trainer.log_dir) / METRICS_FILE))
    return sum(metrics["comm/up_bytes"] for number, metrics in rows if number > setting.warmup_rounds) / 4


def cost_table(setting: Setting) -> Table:
    """A row for each cell."""
    table = Table(
        f"Uploads of one client in {setting.rounds} rounds after warm-up, R = {setting.rank}; millions of parameters",
        ["method", "D", "parameters", "here", "paper", "seconds"],
    )
    for cell in CELLS:
        started = time.perf_counter()
        backbone = McMahanCNN(in_channels=3, image_size=32, num_classes=cell.num_classes, padding=0)
        count = uploaded(cell, backbone, setting, channels=3, side=32, num_classes=cell.num_classes)
        dim = sum(parameter.numel() for parameter in backbone.parameters())
        seconds = time.perf_counter() - started
        table.add(cell.name, f"{dim:,}", f"{count:,.0f}", f"{count / 1e6:.2f}", cell.published, f"{seconds:.0f}")
    return table


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, default=Setting.rank, help="R")
    parser.add_argument("--warmup_rounds", type=int, default=Setting.warmup_rounds, help="L, at least R")
    parser.add_argument("--rounds", type=int, default=Setting.rounds, help="rounds after warm-up; the paper counts 200")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.add_argument("--output", type=Path, default=Path("runs/flss_costs"), help="folder of the table's files")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    torch.set_num_threads(options.threads)
    table = cost_table(Setting(options.rank, options.warmup_rounds, options.rounds))
    table.show()
    table.write(options.output)


if __name__ == "__main__":
    main()
