"""Modules as people bring them, each with the ways in which its steps may be computed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from worlds import Stock, equal_data, ragged_data

from lfl.data import FederatedDataModule, TensorData
from lfl.data.sources import Source

ALL = frozenset({"vectorized", "recorded", "vectorized and recorded"})


@dataclass(frozen=True)
class Brought:
    """A module, its data, and which ways are right for it."""

    make: Callable[[], Stock]
    ways: frozenset[str] = ALL
    is_padded: bool = False
    source: type[Source] | None = None

    def data(self, is_even: bool) -> FederatedDataModule:
        """Clients of very different sizes, or of one size, where each shape of batches takes a second to record."""
        options = {} if self.source is None else {"source": self.source()}
        return equal_data(**options) if is_even else ragged_data(**options)


class Net(Stock):
    """Tanh network for 64 inputs and 4 classes; kinds differ in their loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        del batch_idx
        return self.loss(self(batch[0]), batch[1])

    def loss(self, logits: Tensor, y: Tensor) -> Any:
        return F.cross_entropy(logits, y)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def net(loss: Any, base: type[Net] = Net) -> Callable[[], Stock]:
    """A network with another loss of (logits, targets)."""
    return type("Net", (base,), {"loss": lambda self, logits, y: loss(logits, y)})


def focal(logits: Tensor, y: Tensor) -> Tensor:
    log_p = logits.log_softmax(1)[torch.arange(len(y)), y]
    return -((1 - log_p.exp()) ** 2 * log_p).mean()


def masked(logits: Tensor, y: Tensor) -> Tensor:
    mask = (y > 0).to(logits.dtype)
    return (F.cross_entropy(logits, y, reduction="none") * mask).sum() / mask.sum().clamp(min=1)


def contrastive(logits: Tensor, y: Tensor) -> Tensor:
    same = (y[:, None] == y[None]).to(logits.dtype)
    z = F.normalize(logits, dim=1)
    return F.cross_entropy(logits, y) + 0.1 * ((z @ z.T - same) ** 2).mean()


def hard_triplet(logits: Tensor, y: Tensor) -> Tensor:
    apart = (logits[:, None] - logits[None]).square().sum(-1)
    same = y[:, None] == y[None]
    positive = apart.masked_fill(~same, 0.0).amax(1)
    negative = apart.masked_fill(same, 1e3).amin(1)
    return F.relu(positive - negative + 1).mean() + F.cross_entropy(logits, y)


class Averaging(Net):
    """Keeps a running mean of its loss, no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.running = torch.zeros(())

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(logits, y)
        self.running = 0.9 * self.running + 0.1 * loss.detach()
        return loss * (1 + self.running)


class Teacher(Net):
    """An EMA teacher that no state dict shows."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(64, 4).double().requires_grad_(False)]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        logits = self.layers(batch[0])
        teacher = self.hidden[0](batch[0].flatten(1).double())
        self.hidden[0].weight.data.mul_(0.99)
        return F.cross_entropy(logits, batch[1]) + F.mse_loss(logits, teacher.to(logits.dtype))


class Warming(Net):
    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y) + min(1.0, self.current_epoch / 3) * logits.square().mean()


class Alternating(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layers(batch[0]), batch[1]) * (1.0 if batch_idx % 2 else 0.5)


class Checkpointed(Net):
    use_reentrant = False

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        hidden = self.layers[:2](batch[0])
        logits = checkpoint(self.layers[2:], hidden, use_reentrant=self.use_reentrant)
        return F.cross_entropy(logits, batch[1])


class Reentrant(Checkpointed):
    use_reentrant = True


class Tied(Net):
    """Reconstructs its input through the transpose of its first layer."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = batch[0].flatten(1)
        hidden = self.layers[1](x).tanh()
        return F.cross_entropy(self.layers[3](hidden), batch[1]) + F.mse_loss(hidden @ self.layers[1].weight, x)


class Mixed(Net):
    """Parts of its step in float32."""

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        scale = logits.float().abs().mean(1, keepdim=True).detach().to(logits.dtype)
        return F.cross_entropy(logits / (1 + scale), y)


class Penalised(Net):
    """A gradient penalty."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = batch[0].requires_grad_()
        logits = self.layers(x)
        (gradient,) = torch.autograd.grad(logits.sum(), x, create_graph=True)
        return F.cross_entropy(logits, batch[1]) + gradient.square().mean()


class Recurrent(Net):
    """Reads two rows of an image, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(8, 6, batch_first=True)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.layers(x.squeeze(1)[:, :2])
        return self.head(output[:, -1])


class Tokens(Source):
    """Sequences of 6 tokens, of which 0 is padding."""

    num_classes = 3

    def load(self) -> tuple[TensorData, TensorData]:
        x = torch.randint(0, 7, (90, 6), generator=torch.Generator().manual_seed(0))
        return TensorData(x, x.sum(1) % 3), TensorData(x, x.sum(1) % 3)


class Embedded(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(7, 5, padding_idx=0), nn.Flatten(), nn.Linear(30, 3))


class NextToken(Net):
    """A language model that ignores padding among its targets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(7, 5, padding_idx=0), nn.Linear(5, 7))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = batch[0]
        targets = x[:, 1:].masked_fill(x[:, 1:] == 0, -100)
        return F.cross_entropy(self.layers(x[:, :-1]).flatten(0, 1), targets.flatten())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass


def heads(logits: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Uncertainty weighting, returned as a dict with more than the loss."""
    return {"loss": F.cross_entropy(logits, y) + 0.1 * logits.square().mean(), "logits": logits.detach()}


BROUGHT: dict[str, Brought] = {
    "plain": Brought(net(F.cross_entropy), is_padded=True),
    "label smoothing": Brought(net(lambda z, y: F.cross_entropy(z, y, label_smoothing=0.1)), is_padded=True),
    "a mean by hand": Brought(net(lambda z, y: F.cross_entropy(z, y, reduction="sum") / len(y)), is_padded=True),
    "focal": Brought(net(focal), is_padded=True),
    "class weights": Brought(net(lambda z, y: F.cross_entropy(z, y, weight=torch.tensor([0.1, 1.0, 2.0, 5.0]).to(z)))),
    "masked": Brought(net(masked)),
    "sum": Brought(net(lambda z, y: F.cross_entropy(z, y, reduction="sum") / 16)),
    "root of mse": Brought(net(lambda z, y: F.mse_loss(z, torch.eye(4).to(z)[y]).sqrt())),
    "one_hot, which looks at its numbers": Brought(
        net(lambda z, y: F.mse_loss(z, F.one_hot(y, 4).to(z))), ALL - {"recorded"}, is_padded=True
    ),
    "standardised in the batch": Brought(net(lambda z, y: F.cross_entropy(z - z.mean(0), y))),
    "contrastive": Brought(net(contrastive)),
    "hard triplets": Brought(net(hard_triplet)),
    "a dict": Brought(net(heads), is_padded=True),
    "running average": Brought(Averaging, frozenset()),
    "hidden teacher": Brought(Teacher, frozenset()),
    "warm-up by epochs": Brought(Warming, frozenset({"vectorized"})),
    "by batch_idx": Brought(Alternating, frozenset({"vectorized"}), is_padded=True),
    "checkpointed": Brought(Checkpointed, frozenset({"recorded"})),
    "checkpointed, reentrant": Brought(Reentrant, frozenset()),
    "tied": Brought(Tied, is_padded=True),
    "mixed types": Brought(Mixed, is_padded=True),
    "gradient penalty": Brought(Penalised, frozenset({"recorded"})),
    "lstm": Brought(Recurrent, is_padded=True),
    "embedding with padding": Brought(Embedded, source=Tokens),
    "language model": Brought(NextToken, source=Tokens),
}
