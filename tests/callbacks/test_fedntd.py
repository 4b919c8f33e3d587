"""FedNTD: its divergence, what it does not see, and rounds followed by hand."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div
from torch.utils.data import Dataset, TensorDataset
from worlds import batch_norm, cnn, equal_data, even_data, images, mlp, ragged_data, train

from lfl.callbacks import FedNTD
from lfl.callbacks.fedntd import not_true_divergence
from lfl.data import DatasetSource, FederatedDataModule
from lfl.participation import FullParticipation

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorized"])
LABELS = torch.tensor([0, 3, 1, 2, 2, 0])


def logits(seed: int, classes: int = 4) -> Tensor:
    return 2 * torch.randn(6, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@ENGINES
def test_without_weight_it_is_fedavg_to_the_bit(engine: str, tmp_path: Path) -> None:
    runs = [train(stack, tmp_path, cnn(dropout=0.3), engine=engine) for stack in ([], [FedNTD(0.0)])]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_the_divergence_is_that_of_the_other_classes(tau: float) -> None:
    """Against torch's own, on logits from which the true class was taken out."""
    own, servers = logits(0), logits(1)
    others = [[c for c in range(4) if c != label] for label in LABELS.tolist()]
    kept_own, kept_servers = (z.gather(1, torch.tensor(others)) / tau for z in (own, servers))
    expected = kl_div(kept_own.log_softmax(1), kept_servers.softmax(1), reduction="batchmean")
    found = not_true_divergence(own, servers, LABELS, tau)
    assert float(found) == pytest.approx(float(expected), abs=1e-14)
    shifted = not_true_divergence(own + 5, servers - 3, LABELS, tau)
    assert float(shifted) == pytest.approx(float(found), abs=1e-13)


def test_the_true_class_gets_no_gradient_at_all() -> None:
    own = logits(0).requires_grad_()
    (gradient,) = torch.autograd.grad(not_true_divergence(own, logits(1), LABELS), own)
    true = gradient.gather(1, LABELS[:, None])
    assert true.tolist() == [[0.0]] * 6
    assert gradient.abs().sum(dim=1).min() > 1e-3
    assert gradient.sum(dim=1).abs().max() < 1e-15


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_where_it_is_zero(dtype: torch.dtype) -> None:
    own, labels = logits(0).to(dtype).requires_grad_(), LABELS
    same = not_true_divergence(own, own.detach(), labels)
    two_classes = not_true_divergence(own[:, :2], logits(1, 2).to(dtype), labels % 2)
    for divergence in (same, two_classes):
        assert float(divergence.detach()) == 0.0
        (gradient,) = torch.autograd.grad(divergence, own, retain_graph=True)
        assert gradient.abs().max() < 1e-6
    assert bool(not_true_divergence(100 * own.detach(), -100 * own.detach(), labels).isfinite())


class Constant(nn.Module):
    """The same logits for every example: the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.bias.expand(len(x), -1)


class Biased(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = Constant()

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return cross_entropy(self.backbone(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def softmax(values: list[float]) -> list[float]:
    total = sum(math.exp(value) for value in values)
    return [math.exp(value) / total for value in values]


@ENGINES
def test_two_rounds_with_server_momentum_by_hand(engine: str, tmp_path: Path) -> None:
    """One client of class 0, two steps of 0.5, beta = 2, tau = 2, server momentum 0.5.

    The loss's gradient is softmax(y) - (1, 0, 0); the term's is beta tau (0, p - q), p and q the probabilities of
    classes 1 and 2 by y / tau and x / tau. In a round's first step p = q. From x = 0 both classes stay alike, and the
    term has nothing to say: so round 1 sets out from x = (0, 1, 0).
    """

    def of_round(x: list[float]) -> list[float]:
        y = x
        for _ in range(2):
            p, q = softmax([v / 2 for v in y[1:]]), softmax([v / 2 for v in x[1:]])
            loss = [s - t for s, t in zip(softmax(y), (1.0, 0.0, 0.0), strict=True)]
            term = [0.0, *(2 * 2 * (a - b) for a, b in zip(p, q, strict=True))]
            y = [v - 0.5 * (a + b) for v, a, b in zip(y, loss, term, strict=True)]
        return [a - b for a, b in zip(y, x, strict=True)]

    x0 = [0.0, 1.0, 0.0]
    first = of_round(x0)
    x1 = [a + b for a, b in zip(x0, first, strict=True)]
    x2 = [a + 0.5 * b + c for a, b, c in zip(x1, first, of_round(x1), strict=True)]

    module = Biased()
    module.backbone.bias.data.copy_(torch.tensor(x0))
    data = FederatedDataModule(
        DatasetSource(*[TensorDataset(torch.zeros(2, 1), torch.tensor([0, 0]))] * 2, num_classes=3), num_clients=1
    )

    def momentum(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1.0, momentum=0.5)

    trainer = train(
        [FedNTD(2.0, 2.0)], tmp_path, module, data, engine=engine, max_rounds=2, local_steps=2,
        participation=FullParticipation(), server_optimizer=momentum,
    )  # fmt: skip
    assert trainer.server.vector.tolist() == pytest.approx(x2, abs=1e-14)


def test_clients_keep_what_the_server_says_of_other_classes(tmp_path: Path) -> None:
    divergences = [
        train([FedNTD(beta)], tmp_path, cnn(), local_epochs=3, max_rounds=1).summary.last("fedntd/divergence")[0]
        for beta in (1e-9, 0.1, 0.5)
    ]
    assert divergences[0] > 1.1 * divergences[1] > 1.1 * 1.1 * divergences[2] > 0


def test_the_pass_of_x_does_not_touch_batch_norms_statistics(tmp_path: Path) -> None:
    """With a weight of next to nothing the statistics are FedAvg's."""
    options = {"participation": FullParticipation(), "max_rounds": 1}
    states = [
        train(stack, tmp_path, batch_norm(), even_data(5), **options).server_state_dict()
        for stack in ([], [FedNTD(1e-30)])
    ]
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=0, atol=1e-15)


@ENGINES
def test_recorded_steps_are_the_same(engine: str, tmp_path: Path) -> None:
    runs = [
        train([FedNTD(1.0, 2.0)], tmp_path, cnn(), equal_data(), engine=engine, trace_steps=trace, local_epochs=2)
        for trace in (False, True)
    ]
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-12)


class Named(Dataset[Any]):
    """The usual images as dicts."""

    def __init__(self) -> None:
        self.inner = images()
        self.targets = self.inner.tensors[1]

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"pixels": self.inner[i][0], "meta": {"label": self.inner[i][1]}}


class OfDicts(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def training_step(self, batch: dict[str, Any]) -> Tensor:
        return cross_entropy(self.inner(batch["pixels"]), batch["meta"]["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_labels_are_where_the_user_says(tmp_path: Path) -> None:
    def run(target: str | int, data: FederatedDataModule, module: LightningModule, layer: str) -> Tensor:
        stack = [FedNTD(2.0, logits=layer, target=target)]
        return train(stack, tmp_path, module, data, logger=False).server.vector

    plain = DatasetSource(images(), images(), num_classes=4)
    named = DatasetSource(Named(), Named(), num_classes=4, target="meta.label")
    found = run("meta.label", ragged_data(source=named), OfDicts(), "inner")
    torch.testing.assert_close(found, run(1, ragged_data(source=plain), mlp(), "backbone"), rtol=0, atol=1e-13)
    with pytest.raises(ValueError, match=r"`target=1` of FedNTD names no part of a batch, which has: pixels, meta.lab"):
        run(1, ragged_data(source=named), OfDicts(), "inner")
    with pytest.raises(ValueError, match=r"`target=0` of FedNTD must be class labels, .* and is torch.float64 of sh"):
        run(0, ragged_data(source=plain), mlp(), "backbone")


def test_a_layer_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`logits=backbon` of FedNTD names no submodule of Classifier; near it are"):
        train([FedNTD(logits="backbon")], tmp_path, mlp())


@pytest.mark.parametrize(("options", "reason"), [({"beta": -1.0}, "beta=-1.0"), ({"tau": 0.0}, "tau=0.0")])
def test_refused_values(options: dict[str, float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FedNTD(**options)
