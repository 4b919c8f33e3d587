"""One client at a time is what plain torch does: optimizers, gradients that are missing, hooks on gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch
from contract.brought import Net
from torch import Tensor, nn
from torch.nn import functional as F
from worlds import ragged_data, train

from lfl.participation import FullParticipation


class Kept(Net):
    """Keeps its batches, to take the same steps without lfl."""

    optimizer: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)
        self.other = nn.Linear(64, 4)
        self.batches: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.batches.append((batch, batch_idx))
        return self.of(batch, batch_idx)

    def of(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]) + self.other(batch[0].flatten(1)), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return type(self).optimizer(self.parameters())


class Alternating(Kept):
    """One head or the other, by the number of the batch."""

    def of(self, batch: Any, batch_idx: int) -> Tensor:
        logits = self(batch[0]) if batch_idx % 2 else self.other(batch[0].flatten(1))
        return F.cross_entropy(logits, batch[1])


class Detaching(Kept):
    """Trains its second head in the first round alone."""

    def of(self, batch: Any, batch_idx: int) -> Tensor:
        other = self.other(batch[0].flatten(1))
        return F.cross_entropy(self(batch[0]) + (other if self.current_epoch < 1 else other.detach()), batch[1])


class Rarely(Kept):
    """A head that only some batches reach, as no look ahead can know."""

    def of(self, batch: Any, batch_idx: int) -> Tensor:
        other = self.other(batch[0].flatten(1))
        return F.cross_entropy(self(batch[0]) + (other if float(batch[0].sum()) > 15 else other.detach()), batch[1])


class Assigning(Kept):
    """Gives a parameter another tensor in its step."""

    def of(self, batch: Any, batch_idx: int) -> Tensor:
        self.other.weight.data = self.other.weight.data.clamp(-0.1, 0.1)
        return super().of(batch, batch_idx)


class Hooked(Kept):
    def __init__(self) -> None:
        super().__init__()
        self.other.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))


OPTIMIZERS = {
    "decay": lambda params: torch.optim.SGD(params, lr=0.1, weight_decay=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.5),
}


@pytest.mark.filterwarnings("ignore:No gradient reaches")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", [Kept, Alternating, Rarely])
def test_a_missing_gradient_is_no_gradient_of_zero(kind: type[Kept], optimizer: str, tmp_path: Path) -> None:
    """Trained together, or recorded, it would be: then it is refused where that is another thing."""
    chosen = type(kind.__name__, (kind,), {"optimizer": staticmethod(OPTIMIZERS[optimizer]), "training_step": kind.of})
    for way in ({"engine": "vectorized"}, {"trace_steps": True}):
        if optimizer == "momentum" and kind is Kept:
            continue  # what never has a gradient has no momentum either
        with pytest.raises((ValueError, RuntimeError), match=r"no gradient reaches|data-dependent|reads `batch_idx`"):
            train([], tmp_path, chosen(), ragged_data(), **way)


@pytest.mark.filterwarnings("ignore:No gradient reaches")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", [Kept, Alternating, Detaching, Rarely, Assigning, Hooked])
def test_one_client_equals_plain_torch(kind: type[Kept], optimizer: str, tmp_path: Path) -> None:
    chosen = type(kind.__name__, (kind,), {"optimizer": staticmethod(OPTIMIZERS[optimizer])})
    torch.manual_seed(0)
    module = chosen()
    train([], tmp_path, module, ragged_data(1), max_rounds=2, participation=FullParticipation())
    torch.manual_seed(0)
    plain = chosen().double()
    per_round = len(module.batches) // 2
    for number in range(2):
        vars(plain)["_trainer"] = type("Trainer", (), {"current_epoch": number})()
        stepping = plain.configure_optimizers()  # a client has a fresh one in every round
        for batch, index in module.batches[number * per_round : (number + 1) * per_round]:
            stepping.zero_grad()
            plain.of(batch, index).backward()
            stepping.step()
    torch.testing.assert_close(module.state_dict(), plain.state_dict(), rtol=0, atol=1e-12)


def test_the_learning_rate_is_what_the_module_says_in_each_round(tmp_path: Path) -> None:
    class Slowing(Net):
        def on_train_epoch_start(self) -> None:
            self.rate = 0.1 / (1 + self.current_epoch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=getattr(self, "rate", 0.1))

    class Scheduled(Net):
        def configure_optimizers(self) -> Any:
            stepping = torch.optim.SGD(self.parameters(), lr=0.1)
            return [stepping], [torch.optim.lr_scheduler.LambdaLR(stepping, lambda epoch: 1 / (1 + epoch))]

    runs = []
    for kind in (Slowing, Scheduled):
        for engine in ("sequential", "vectorized"):
            torch.manual_seed(0)
            runs.append(train([], tmp_path, kind(), ragged_data(), engine=engine))
    for run in runs[1:]:
        torch.testing.assert_close(run.server.vector, runs[0].server.vector, rtol=0, atol=1e-9)
    assert runs[0].summary.last("lr")[0] == pytest.approx(0.1 / 3)


def test_an_optimizer_of_a_part_trains_that_part_on_every_path(tmp_path: Path) -> None:
    class Part(Net):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.layers[3].parameters(), lr=0.1)

    runs = []
    for engine, trace_steps in (
        ("sequential", False),
        ("sequential", True),
        ("vectorized", False),
        ("vectorized", True),
    ):
        torch.manual_seed(0)
        runs.append(train([], tmp_path, Part(), ragged_data(), engine=engine, trace_steps=trace_steps, max_rounds=1))
        torch.testing.assert_close(runs[-1].server.vector, runs[0].server.vector, rtol=0, atol=1e-9)


def test_buffers_that_a_hook_changes_are_the_servers(tmp_path: Path) -> None:
    class Scaled(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(()))

        def on_train_epoch_start(self) -> None:
            self.scale.fill_(1.0 + self.current_epoch)

        def on_train_epoch_end(self) -> None:
            self.log("scale", self.scale)

        def loss(self, logits: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(logits * self.scale, y)

    runs = []
    for engine in ("sequential", "vectorized"):
        torch.manual_seed(0)
        runs.append(train([], tmp_path, Scaled(), ragged_data(), engine=engine))
        assert runs[-1].summary.last("scale")[0] == 3.0
        assert float(runs[-1].server_state_dict()["scale"]) == 3.0
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-9)
