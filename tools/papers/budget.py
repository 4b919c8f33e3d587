"""The cost of running the papers' settings on data that does not come with lfl: the table of docs/data.md.

    python -m tools.papers.budget

Clients, steps, batches, parameters and rounds are those of the configs; steps are means over clients, dealt by the
config's partitioner from as many labels as the data has, of which each is as frequent. No data is read.

Hours are an estimate for one H100, for ResNet-18 alone, which is the only network of these that was measured there
(docs/performance.md, `resnet`, 32-true): 4 clients x 5 steps of 10 images of CIFAR's shape in a round, M rounds a
second, which are S = 20 M client steps a second. With R rounds of C clients, K steps each, of batches of B images,

    least = R C K / (S 3600)               as if a larger step took no longer
    most  = least (B F) / (10 F_measured)  as if it took longer by its operations; F are those of an image

Evaluation, reading images and what a method adds to FedAvg are in neither.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch.utils.flop_counter import FlopCounterMode

from lfl.cli import ResolvingCLI
from lfl.models import ResNet
from tools.table import Table

_FOLDER = "configs/papers"
_CLIENT_STEPS = 4 * 5  # of a measured round
_BATCH = 10
_CIFAR = (3, 32, 32)


@dataclass(frozen=True)
class Row:
    """A setting.

    Attributes:
        configs: below configs/papers, one laid over the other.
        examples: of its training set, and of its test set where both are dealt.
        classes: of the data.
        shape: of an image, where the network is ResNet-18.
        measured: rounds a second of `resnet` on an H100, on the engine that this one takes.
        overrides: further settings, which leave out files.
    """

    configs: tuple[str, ...]
    examples: int
    classes: int
    shape: tuple[int, ...] = ()
    measured: float = 7.64  # vectorized, 4 clients together
    overrides: tuple[str, ...] = ()


_SEQUENTIAL = 4.85  # BatchNorm trains one client after another
_TINY = (3, 64, 64)
_NO_GLOVE = ("--model.backbone.glove=null", "--data.source.glove=null")
ROWS = (
    Row(("flss/ag_news",), 127_600, 4),
    Row(("flss/tiny",), 110_000, 200),
    Row(("flss/tiny", "flss/networks/tiny_resnet18"), 110_000, 200, _TINY, _SEQUENTIAL),
    Row(("fedmrur/cifar10",), 50_000, 10, _CIFAR),
    Row(("fedmrur/cifar100",), 50_000, 100, _CIFAR),
    Row(("fedmrur/tiny",), 100_000, 200, _TINY),
    Row(("srpfl/femnist",), 18_000, 10),
    Row(("srpfl/sent140",), 16_600, 2, overrides=_NO_GLOVE),
    Row(("ssf/cifar100",), 50_000, 100),
)


@dataclass(frozen=True)
class Budget:
    """The work of a setting: clients in a round and in all, steps of each, batch, trained parameters, rounds.

    ``hours`` are the least and the most on one H100; none where nothing was measured.
    """

    clients: int
    of: int
    steps: int
    batch: int
    parameters: int
    rounds: int
    hours: tuple[float, float] | None = None


def budget_of(row: Row) -> Budget:
    """Read a setting's configs, and count."""
    words = [word for name in row.configs for word in ("--config", f"{_FOLDER}/{name}.yaml")]
    cli: Any = ResolvingCLI(["fit", *words, *row.overrides, "--trainer.accelerator=cpu"])
    trainer, data = cli.config["fit"]["trainer"], cli.datamodule
    labels = torch.arange(row.examples) % row.classes
    sizes = data.partitioner.split(labels, None, data.num_clients, data.seed).sizes.float()
    batches = (sizes * (1 - (data.client_test_fraction or 0)) / data.batch_size).ceil()
    steps = trainer["local_steps"] or round(trainer["local_epochs"] * batches.mean().item())
    clients = getattr(trainer["participation"].get("init_args"), "clients_per_round", data.num_clients)
    parameters = sum(p.numel() for p in cli.model.parameters() if p.requires_grad)
    found = Budget(clients, data.num_clients, steps, data.batch_size, parameters, trainer["max_rounds"])
    return _with_hours(found, row, cli.model) if row.shape else found


def _with_hours(budget: Budget, row: Row, model: LightningModule) -> Budget:
    least = budget.rounds * budget.clients * budget.steps / (_CLIENT_STEPS * row.measured) / 3600
    work = budget.batch * operations(model, row.shape) / (_BATCH * operations(ResNet(depth=18, norm="group"), _CIFAR))
    return replace(budget, hours=(least, least * max(1.0, work)))


def operations(model: torch.nn.Module, shape: tuple[int, ...]) -> int:
    """Multiplications and additions of the network on one image."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.zeros(1, *shape))
    return int(counter.get_total_flops())


def table() -> Table:
    """The table of all settings."""
    heads = ["config", "clients in a round", "steps of each", "batch", "parameters", "rounds", "hours on an H100"]
    made = Table("What the papers' settings take", heads)
    for row in ROWS:
        budget = budget_of(row)
        first, *others = (f"`papers/{name}.yaml`" for name in row.configs)
        hours = "-" if budget.hours is None else " to ".join(_shown(hours) for hours in budget.hours)
        counts = (budget.steps, budget.batch, budget.parameters, budget.rounds)
        made.add(
            " with ".join([first, *(name.replace("papers/flss/", "") for name in others)]),
            f"{budget.clients} of {budget.of}",
            *(f"{count:,}" for count in counts),
            hours,
        )
    return made


def _shown(hours: float) -> str:
    """Two digits.

    >>> _shown(0.5818), _shown(12.34), _shown(123.4)
    ('0.58', '12', '120')
    """
    digits = 1 - math.floor(math.log10(hours))
    return f"{round(hours, digits):.{max(0, digits)}f}"


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options_of(arguments)
    print(table().markdown())


if __name__ == "__main__":
    main()
