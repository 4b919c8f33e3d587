"""The cost of codecs beyond the bytes they must touch: encoding and decoding a ResNet-18, and FLSS's basis of it.

    python -m tools.benchmarks.codecs
    python -m tools.benchmarks.codecs --quick        # a small model, in seconds: no results

The update of one client (D = 11,181,642 in ResNet-18's shapes) goes through the loop: each codec's ``encode`` and
``decode`` are timed there, a client at a time, and what a codec does at the server's step once a round. Beside it
stands one copy of the update in memory, the least that anything that touches it costs; ratios are to that. Times are of
the CPU, all threads together, which other programs on the machine do not lengthen. The local
work is one step of a made-up loss, as no codec has a hook in a step; the table says so of each. (FLSS
has one where it is told to project gradients.)

FLSS's basis takes in a move of the server: [R, D] numbers, R = 50, are read and written, which one copy does, too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from lfl.callback import overrides
from lfl.callbacks import FLSS, LBGM, QSGD, STC, FederatedCallback, FetchSGD, LocalNoise, RandomK, Sign, TopK
from lfl.cli.allocator import keep_freed_memory
from lfl.data import DatasetSource, FederatedDataModule, IIDPartitioner
from lfl.models import ResNet
from lfl.participation import FullParticipation
from lfl.subspace.streaming import StreamingBasis
from tools.table import Table
from tools.training import fitted

CODECS: dict[str, Callable[[int], FederatedCallback]] = {
    "Sign": lambda dim: Sign(),
    "Sign, majority vote": lambda dim: Sign(error_feedback=False, vote="majority"),
    "QSGD, 16 levels": lambda dim: QSGD(16),
    "Top-k, 1 %": lambda dim: TopK(0.01),
    "Random-k, 1 %": lambda dim: RandomK(0.01),
    "STC, 1 %": lambda dim: STC(0.01),
    "FetchSGD, 5 x D / 20": lambda dim: FetchSGD(5, max(1, dim // 20)),
    "LBGM": lambda dim: LBGM(),
    "LocalNoise": lambda dim: LocalNoise(1.0, 1.0),
    "FLSS, R = 10, projected rounds": lambda dim: FLSS(warmup_rounds=11, rank=10, sample_every=None),
}
_STEP_HOOKS = ("client_loss", "wrap_gradient", "on_step_end")


class Ballast(LightningModule):
    """Parameters of another module, and a loss that costs no more than to read them."""

    def __init__(self, shapes: list[torch.Size]) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        self.weights = nn.ParameterList(torch.randn(shape, generator=draws) for shape in shapes)

    @override
    def training_step(self, batch: list[Tensor]) -> Tensor:
        targets = batch[0].mean()
        loss: Tensor = sum((weight - targets).square().sum() for weight in self.weights)
        return loss

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Times:
    """Seconds of a codec's hooks, in the rounds that are counted."""

    def __init__(self, codec: FederatedCallback) -> None:
        self.seconds: dict[str, list[float]] = {}
        for hook in ("encode", "decode", "on_server_step"):
            if overrides(codec, hook):
                setattr(codec, hook, self._timed(hook, getattr(codec, hook)))

    def _timed(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.process_time()
            result = hook(*arguments)
            self.seconds.setdefault(name, []).append(time.process_time() - started)
            return result

        return timed

    def median(self, name: str, last: int) -> float:
        """Median milliseconds of the last calls of a hook; zero where there is none."""
        found = self.seconds.get(name, [])[-last:]
        return 1e3 * statistics.median(found) if found else 0.0


def run(codec: FederatedCallback, model: LightningModule, rounds: int) -> Times:
    """Send updates of two clients through a codec."""
    times = Times(codec)
    examples = TensorDataset(torch.tensor([[-1.0], [1.0]]), torch.zeros(2))
    source = DatasetSource(examples, examples, num_classes=0)
    data = FederatedDataModule(source, IIDPartitioner(), num_clients=2, batch_size=1)
    settings = {"max_rounds": rounds, "participation": FullParticipation(), "engine": "sequential", "local_steps": 1}
    with fitted(model, data, callbacks=[codec], check_val_every_n_rounds=10**6, trace_steps=False, **settings):
        return times


def copy_milliseconds(numbers: int, repeats: int = 9) -> float:
    """Median milliseconds of one copy of so many float32 numbers."""
    source, target, found = torch.ones(numbers), torch.empty(numbers), []
    for _ in range(repeats + 1):
        started = time.process_time()
        target.copy_(source)
        found.append(time.process_time() - started)
    return 1e3 * statistics.median(found[1:])


def table_of_codecs(shapes: list[torch.Size], rounds: int) -> Table:
    """Milliseconds of each codec for one client, beside one copy of its update."""
    dim = sum(shape.numel() for shape in shapes)
    copy = copy_milliseconds(dim)
    table = Table(
        f"One client's update, D = {dim:,}, {torch.get_num_threads()} thread(s); a copy of it takes {copy:.1f} ms",
        ["codec", "encode ms", "decode ms", "server's step ms", "encode + decode / copy", "hooks in a local step"],
    )
    for name, make in CODECS.items():
        codec = make(dim)
        last = 12 if isinstance(codec, FLSS) else 0  # its first rounds send whole updates
        times = run(codec, Ballast(shapes), rounds + last)
        encode, decode, server = (times.median(hook, 2 * rounds) for hook in ("encode", "decode", "on_server_step"))
        hooks = ", ".join(hook for hook in _STEP_HOOKS if overrides(codec, hook)) or "none"
        table.add(name, f"{encode:.1f}", f"{decode:.1f}", f"{server:.1f}", f"{(encode + decode) / copy:.1f}", hooks)
    return table


def table_of_basis(dim: int, rank: int, repeats: int) -> Table:
    """Milliseconds in which FLSS's basis takes in a move of the server, beside one copy of the basis."""
    draws = torch.Generator().manual_seed(0)
    basis = StreamingBasis(rank, torch.empty(dim))
    basis.start(torch.randn(rank, dim, generator=draws))
    copy = copy_milliseconds(rank * dim, repeats)
    found = []
    for _ in range(repeats):
        move = torch.randn(dim, generator=draws)
        started = time.process_time()
        basis.update(move, 0.7)
        found.append(1e3 * (time.process_time() - started))
    table = Table(
        f"FLSS's basis takes in a move, D = {dim:,}, R = {rank}, {torch.get_num_threads()} thread(s)",
        ["", "ms", "/ copy"],
    )
    table.add("copy of [R, D]", f"{copy:.0f}", "1.00")
    table.add("update", f"{statistics.median(found):.0f}", f"{statistics.median(found) / copy:.2f}")
    return table


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of each codec, with two clients; 5")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.add_argument("--quick", action="store_true", help="a small model: no results")
    parser.add_argument("--output", type=Path, default=Path("runs/codecs"), help="folder of the tables' files")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as the command line does
    with torch.device("meta"):
        shapes = [parameter.shape for parameter in ResNet(18, num_classes=10).parameters()]
    if options.quick:
        shapes = shapes[:6]
    dim = sum(shape.numel() for shape in shapes)
    tables = {
        "codecs": table_of_codecs(shapes, options.rounds),
        "flss-basis": table_of_basis(dim, 5 if options.quick else 50, 3 if options.quick else 5),
    }
    for name, table in tables.items():
        table.show()
        table.write(options.output, name)


if __name__ == "__main__":
    main()
