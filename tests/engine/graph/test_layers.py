"""Layers that keep examples apart, and those that do not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from examples_alone import CLASSES, FEATURES, KEY, batches, cross_entropy, is_mean, model_of
from torch import Tensor, nn

from lfl.engine.graph.separable import why_not_a_mean, why_not_separable
from lfl.models import MLP, CifarResNet, LeNet5, McMahanCNN


class Sequence(nn.Module):
    """The last state of a recurrent network."""

    def __init__(self, layer: type[nn.RNNBase], batch_first: bool, **options: Any) -> None:
        super().__init__()
        self.layer = layer(FEATURES, 8, batch_first=batch_first, **options)
        self.head = nn.Linear(8 * (2 if self.layer.bidirectional else 1), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if self.layer.batch_first:
            return self.head(self.layer(x)[0][:, -1])
        return self.head(self.layer(x.transpose(0, 1))[0][-1])


class Encoder(nn.Module):
    """A layer of a transformer, averaged over the positions."""

    def __init__(self, batch_first: bool, mask: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10, 8)
        self.places = nn.Parameter(torch.randn(4, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=batch_first)
        self.head = nn.Linear(8, CLASSES)
        self.mask = nn.Transformer.generate_square_subsequent_mask(4).double() if mask else None

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.tokens((3 * x).long().abs().clamp(max=9)) + self.places
        if self.layer.self_attn.batch_first:
            return self.head(self.layer(tokens, self.mask).mean(1))
        return self.head(self.layer(tokens.transpose(0, 1), self.mask).mean(0))


class Padded(Encoder):
    """The mean over the positions that are no padding; their number is each example's own."""

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.cat([x[:, :1] > 9, x[:, 1:] > 1], dim=1)
        tokens = self.layer(self.tokens((3 * x).long().abs().clamp(max=9)), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(2)
        return self.head((tokens * kept).sum(1) / kept.sum(1))


class Scaled(nn.Module):
    """Images in and out of other sizes, with normalisation that sees one image."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), norm
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.last = nn.Sequential(nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        larger = F.interpolate(self.norm(self.first(x)), scale_factor=2, mode="bilinear") + self.up(self.first(x))
        return self.last(F.pad(larger, (1, 1)))


def evaluating(norm: nn.Module) -> nn.Module:
    return norm.eval()


SEQUENCE, IMAGE = (4, FEATURES), (3, 8, 8)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (lambda: MLP(FEATURES, [8], CLASSES), (FEATURES,)),
    "CNN": (lambda: McMahanCNN(1, 8, CLASSES, padding=2), (1, 8, 8)),
    "CNN, GroupNorm": (lambda: McMahanCNN(1, 8, CLASSES, padding=2, norm="group"), (1, 8, 8)),
    "LeNet": (lambda: LeNet5(3, 32, CLASSES), (3, 32, 32)),
    "ResNet, GroupNorm": (lambda: CifarResNet(8, num_classes=CLASSES, norm="group"), IMAGE),
    "convolutions of sequences": (
        lambda: nn.Sequential(
            nn.Conv1d(4, 4, 3), nn.MaxPool1d(2), nn.GELU(), nn.AvgPool1d(2), nn.Flatten(), nn.Linear(4, 5)
        ),
        SEQUENCE,
    ),
    "GroupNorm": (lambda: Scaled(nn.GroupNorm(2, 4)), IMAGE),
    "InstanceNorm": (lambda: Scaled(nn.InstanceNorm2d(4, affine=True)), IMAGE),
    "BatchNorm in evaluation": (lambda: Scaled(evaluating(nn.BatchNorm2d(4))), IMAGE),
    "LSTM": (lambda: Sequence(nn.LSTM, True), SEQUENCE),
    "LSTM of two layers": (lambda: Sequence(nn.LSTM, False, num_layers=2, bidirectional=True), SEQUENCE),
    "GRU": (lambda: Sequence(nn.GRU, False), SEQUENCE),
    "RNN": (lambda: Sequence(nn.RNN, True), SEQUENCE),
    "transformer": (lambda: Encoder(True), (4,)),
    "transformer, positions first": (lambda: Encoder(False, mask=True), (4,)),
    "transformer, padding": (lambda: Padded(True), (4,)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_keep_examples_apart(name: str) -> None:
    net, shape = NETWORKS[name]
    model = model_of(cross_entropy, net())
    batch = batches(shape, count=4)[0]
    assert why_not_separable(model, batch, KEY) is None
    assert is_mean(model, batch)


def test_batch_normalisation_sees_the_batch() -> None:
    reason = why_not_separable(model_of(cross_entropy, Scaled(nn.BatchNorm2d(4))), batches(IMAGE)[0], KEY)
    assert reason is not None
    assert "normalises with statistics of the whole batch" in reason


LAYERS: dict[str, Callable[[Tensor], Tensor]] = {
    "activations": lambda x: F.hardswish(x) + F.logsigmoid(x) + F.prelu(x, torch.ones(4).double()) + F.softplus(x),
    "local response": lambda x: F.local_response_norm(x, 2),
    "frames": lambda x: F.pad(F.pad(x, (1, 1), mode="circular"), (1, 2), mode="replicate"),
    "pieces": lambda x: F.unfold(x.unsqueeze(1), 2),
    "sizes": lambda x: F.interpolate(F.adaptive_max_pool1d(x, 3), 5, mode="linear"),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "frequencies": lambda x: torch.fft.rfft(x, dim=1).abs(),
    "determinants": lambda x: torch.linalg.det(x @ x.transpose(1, 2)),
    "products of channels": lambda x: torch.einsum("bij,bkj->bik", x, x),
    "a token in front": lambda x: torch.cat([torch.ones(1, 1, 6).double().expand(len(x), -1, -1), x], 1),
    "one place of each": lambda x: x[torch.arange(len(x)), (x[:, 0, 0] > 0).long()],
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_keep_examples_apart(name: str) -> None:
    def step(params: Tensor, x: Tensor) -> dict[str, Tensor]:
        return {"its loss": LAYERS[name](x * params).tanh().square().mean()}

    params, x = torch.linspace(0.5, 1, 6).double(), batches(SEQUENCE)[0][0]
    assert why_not_a_mean(step, params, x) is None
    singles = [step(params, x[i : i + 1])["its loss"] for i in range(len(x))]
    torch.testing.assert_close(step(params, x)["its loss"], torch.stack(singles).mean())


@pytest.mark.parametrize(
    ("layer", "gist"),
    [
        (lambda x: F.embedding((x > 0).long(), torch.ones(2, 3), scale_grad_by_freq=True), "how often an index occurs"),
        (lambda x: F.conv1d(x.transpose(0, 1), torch.ones(2, len(x), 1).double()), "across the examples"),
        (lambda x: torch.ones(9, 4, 6).double().gather(0, (x > 0).long()), "place in the batch"),
        (lambda x: x[x[:, 0, 0].argsort()], "place in the batch"),
        (lambda x: x[(x[:, 0, 0] > 0).long()], "place in the batch"),
        (lambda x: torch.zeros(2, 6).double().index_add(0, (x[:, 0, 0] > 0).long(), x[:, 0]), "not known"),
    ],
)
def test_layers_that_do_not(layer: Callable[[Tensor], Tensor], gist: str) -> None:
    reason = why_not_a_mean(
        lambda params, x: {"its loss": (layer(x) * params).square().mean()},
        torch.ones(()).double(),
        batches(SEQUENCE)[0][0],
    )
    assert reason is not None
    assert gist in reason
