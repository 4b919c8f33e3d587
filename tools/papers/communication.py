"""The traffic that papers state for their methods, beside the ledger's records of real rounds.

    python -m tools.papers.communication
    python -m tools.papers.communication --networks cnn --only STC "sign + EF" --threads 2

Cells are in ``cost_cells.py``. Those of FLSS's paper are what one client uploads in the 200 rounds after warm-up. Here
one client trains the paper's network on a few random images, one step a round; ``comm/up_bytes`` and
``comm/down_bytes`` of each round are what was really encoded. The warm-up is shorter than the paper's 200 rounds, but
long enough for all R directions. Where rounds repeat themselves, and of the ResNets, one period of them is run and
stands for all.

The CNN (two convolutions of 32 and 64 channels, 512 units) has D = 878,538 with 10 classes and 924,708 with 100. The
ResNets have GroupNorm, which has as many parameters as BatchNorm, and no statistics, which the paper does not count.
FLSS with R = 50 takes 7 GB of memory on ResNet-18, 15 GB on ResNet-50, and some minutes.

Cells that are made replace those of the same name in ``docs/results/data/communication.csv``, and
``docs/results/communication.md`` is written from that file.
"""

from __future__ import annotations

import argparse
import csv
import gc
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from lfl.aggregation import MeanAggregator
from lfl.data import DatasetSource, FederatedDataModule, IIDPartitioner
from lfl.loggers.csv import read_rows
from lfl.models import Classifier, McMahanCNN, ResNet
from lfl.participation import FullParticipation
from lfl.report.tables import markdown
from lfl.storage.folders import METRICS_FILE
from tools.papers.cost_cells import CELLS, UNITS, Cell, NetworkCell, ProblemCell
from tools.papers.runs import fit
from tools.training import fitted

ROOT = Path(__file__).parents[2]
COLUMNS = ["cell", "paper", "up", "down", "gap", "reason"]
PAGE = """# Communication as papers count it and as it is

`python -m tools.papers.communication` makes this page, and `docs/results/data/communication.csv`, from the ledger's
records of real rounds. Numbers are of 32 bits, for one client.

- **FLSS's tables** (1, 4, 7 and 8) count what a client uploads in the 200 rounds after warm-up, in the last of them in
  all 400. *Up* and *down* are the same rounds in the ledger; with all clients in every round, as there. SCAFFOLD and
  FedDC, which send twice as much, have half the rounds, as in the paper. Nothing depends on lambda; the runs have 1.
- The papers of **SSF** and **FL-SSGD** print no costs, but say how many numbers travel: those rows are means over the
  clients of a round, in the runs of `configs/problems/`. SSF's has 10 of 20 clients a round, FL-SSGD's all. Those of
  FedMRUR and SRPFL print neither.

**The largest gap is in no row: the papers do not count the way down.** Codecs of the clients' updates leave it as it
is: signs go up in 1/32 of FedAvg's bits and come down as the whole model, so that both ways together are half of
FedAvg's. FLSS saves as much down as up, as long as every client is in every round. A client that was away follows the
moves that it missed: with half of the clients in a round FedSub sends 1.9 times as much down as up, SSF, with its
control, 3.9 times. STC and FetchSGD compress both ways.

*Gap* is the ledger's upload against the printed one.

{table}

What is printed is often cut and not rounded. What is left is STC's code, LBGM's data, the indices of Top-k, and 0.03 %
at R = 20.
"""

NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "cnn": lambda num_classes: McMahanCNN(in_channels=3, image_size=32, num_classes=num_classes, padding=0),
    "resnet18": lambda num_classes: ResNet(depth=18, num_classes=num_classes, norm="group"),
    "resnet50": lambda num_classes: ResNet(depth=50, num_classes=num_classes, norm="group"),
}
PROBLEMS = "problems"


@dataclass(frozen=True)
class Setting:
    """Size of the run of a cell of FLSS's paper.

    Attributes:
        warmup_rounds: those of FLSS's warm-up, or that are not counted, in which clients are sent the first model.
        measured: those that are run and counted.
        rounds: those that they stand for.
        paper_warmup: those of the paper's warm-up.
        examples: of the client, two a round.
    """

    warmup_rounds: int = 1
    measured: int = 2
    rounds: int = 200
    paper_warmup: int = 200
    examples: int = 128

    @classmethod
    def of(cls, cell: NetworkCell) -> Setting:
        """That of a cell: where all rounds are alike, or the network is large, a period is enough."""
        if cell.varies:
            return cls(warmup_rounds=0, measured=400, rounds=400, paper_warmup=0)
        small = cls() if cell.network == "cnn" else cls(examples=16)
        if cell.rank is None:
            return small
        if cell.network == "cnn":
            return cls(cell.rank + 5, measured=200)
        return replace(small, warmup_rounds=cell.rank, measured=cell.sample_every or 2)


@dataclass(frozen=True)
class Traffic:
    """Numbers of 32 bits that one client sends and is sent."""

    up: float
    down: float


def of_network(cell: NetworkCell, backbone: nn.Module, setting: Setting, channels: int, side: int) -> Traffic:
    """Traffic of one client after warm-up, or in all rounds."""
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(setting.examples, channels, side, side, generator=draws)
    images = TensorDataset(inputs, torch.randint(cell.num_classes, (setting.examples,), generator=draws))
    last = setting.warmup_rounds + setting.measured
    dim = sum(parameter.numel() for parameter in backbone.parameters())
    with fitted(
        Classifier(backbone, lr=0.01),
        FederatedDataModule(DatasetSource(images, images, cell.num_classes), IIDPartitioner(), 1, batch_size=2),
        engine="sequential",
        max_rounds=last,
        participation=FullParticipation(),
        local_steps=1,
        aggregator=MeanAggregator("uniform"),
        callbacks=cell.stack(dim, setting.warmup_rounds) if cell.stack else [],
        check_val_every_n_rounds=last,
    ) as trainer:
        rows = [metrics for _, metrics in read_rows(Path(trainer.log_dir) / METRICS_FILE)]

    def total(name: str) -> float:
        counts = [metrics[name] / 4 for metrics in rows]
        warmup, after = counts[: setting.warmup_rounds], counts[setting.warmup_rounds :]
        if cell.sample_every:  # periods
            counted = sum(after) / len(after) * setting.rounds
        else:
            counted = sum(after) + after[-1] * (setting.rounds - len(after))
        uncounted = sum(warmup) / len(warmup) * setting.paper_warmup if cell.counts_warmup and warmup else 0.0
        return counted * cell.rounds_share + uncounted

    return Traffic(total("comm/up_bytes"), total("comm/down_bytes"))


def of_problem(cell: ProblemCell) -> Traffic:
    """Traffic of a client in a round, a mean over the clients of the cell's rounds."""
    with tempfile.TemporaryDirectory() as folder:
        run = fit(ROOT / f"configs/problems/{cell.config}.yaml", {"trainer.max_rounds": cell.last}, Path(folder))
        series = {name: run.series(name) for name in ("clients", "comm/up_bytes", "comm/down_bytes")}
    counted = range(cell.first, cell.last + 1)
    clients = sum(series["clients"][number] for number in counted)
    up, down = (sum(series[f"comm/{way}_bytes"][n] for n in counted) / clients / 8 for way in ("up", "down"))
    return Traffic(up, down)  # numbers of 64 bits, of which these problems have as many


def traffic(cell: Cell) -> Traffic:
    """The traffic that the ledger of a cell's run has."""
    if isinstance(cell, NetworkCell):
        side = 32 if cell.network == "cnn" else 8  # ResNets have the same parameters whatever the size of an image
        return of_network(cell, NETWORKS[cell.network](cell.num_classes), Setting.of(cell), channels=3, side=side)
    assert isinstance(cell, ProblemCell)
    return of_problem(cell)


def compared(cell: Cell, count: float) -> tuple[str, str]:
    """The gap between the ledger's upload and the printed one, and its reason."""
    if not cell.paper:
        return "", cell.reason
    printed, digit = cell.places
    gap = f"{100 * (count / printed - 1):+.2f} %"
    if abs(count - printed) <= digit / 2:
        return gap, "equal" if count == printed else "rounded"
    if math.floor(count / digit + 1e-9) == round(printed / digit):
        return gap, "cut, not rounded"
    return gap, cell.reason


def row_of(cell: Cell, found: Traffic) -> list[str]:
    """A line of the CSV, with whole numbers."""
    up, down = round(found.up), round(found.down)
    return [cell.name, cell.paper, str(up), str(down), *compared(cell, up)]


def read(path: Path) -> dict[str, list[str]]:
    """The lines of the CSV by cell; none if there is no file."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {row[0]: row for row in csv.reader(file) if row != COLUMNS}


def write(path: Path, rows: dict[str, list[str]]) -> None:
    """Write the lines of known cells, in their order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = [rows[cell.name] for cell in CELLS if cell.name in rows]
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *lines])


def page(rows: dict[str, list[str]]) -> str:
    """The page of the documentation."""
    lines = []
    for name, paper, up, down, gap, reason in rows.values():
        unit = paper.partition(" ")[2]
        lines.append([name, paper or "-", _told(up, unit), _told(down, unit), gap or "-", reason])
    head, _, *body = markdown(["cell", "paper", "up", "down", "gap", "reason"], lines)
    return PAGE.format(table="\n".join([head, "| --- | ---: | ---: | ---: | ---: | --- |", *body]))


def _told(count: str, unit: str) -> str:
    """A number in the paper's unit, with four digits, if it is not too small for that."""
    number = int(count) / UNITS.get(unit, 1.0)
    return f"{f'{number:#.4g}'.rstrip('.')} {unit}" if unit and number >= 1e-3 else f"{int(count):,}"


def chosen(networks: Sequence[str], words: Sequence[str] | None) -> list[Cell]:
    """The cells of some networks, or problems; where there are words, those whose name has one of them."""
    return [
        cell
        for cell in CELLS
        if (cell.network if isinstance(cell, NetworkCell) else PROBLEMS) in networks
        and (not words or any(word in cell.name for word in words))
    ]


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    kinds = [*NETWORKS, PROBLEMS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=kinds, default=kinds, help="those whose cells are made; all")
    parser.add_argument("--only", nargs="+", help="words of which a cell's name must have one; all cells")
    parser.add_argument("--missing", action="store_true", help="leave out those that the CSV has")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs/results", help="folder of the page")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    torch.set_num_threads(options.threads)
    path = options.docs / "data/communication.csv"
    known = read(path) if options.missing else {}
    for cell in [cell for cell in chosen(options.networks, options.only) if cell.name not in known]:
        gc.collect()  # the last cell's run, with D R numbers
        started = time.perf_counter()
        row = row_of(cell, traffic(cell))
        write(path, {**read(path), cell.name: row})
        print(" | ".join(row), f"({time.perf_counter() - started:.0f} s)", flush=True)
    (options.docs / "communication.md").write_text(page(read(path)), encoding="utf-8")


if __name__ == "__main__":
    main()
