"""What every backbone must satisfy."""

import pytest
import torch
from torch import nn

from lfl.models import MLP, CifarResNet, LeNet5, McMahanCNN, ResNet


def num_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


FAMILIES = {
    "cnn": (McMahanCNN, {"image_size": 8}, (1, 8, 8)),
    "cnn-unpadded": (McMahanCNN, {"in_channels": 3, "image_size": 16, "padding": 0}, (3, 16, 16)),
    "mlp": (MLP, {"in_features": 12, "hidden": [8, 6]}, (3, 2, 2)),
    "logistic": (MLP, {"in_features": 12, "hidden": []}, (12,)),
    "lenet": (LeNet5, {}, (1, 28, 28)),
    "lenet-large": (LeNet5, {"in_channels": 3, "image_size": 64}, (3, 64, 64)),
    "cifar-resnet-a": (CifarResNet, {"depth": 8}, (3, 16, 16)),
    "cifar-resnet-b": (CifarResNet, {"depth": 8, "shortcut": "B", "in_channels": 1}, (1, 16, 16)),
    "resnet": (ResNet, {"in_channels": 1}, (1, 32, 32)),
    "resnet-cifar": (ResNet, {"stem": "cifar", "in_channels": 1}, (1, 16, 16)),
}


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("family", FAMILIES)
def test_features_and_logits(family: str, norm: str) -> None:
    kind, settings, shape = FAMILIES[family]
    backbone = kind(**settings, num_classes=7, norm=norm).double()
    x = torch.randn(3, *shape, dtype=torch.float64)
    features = backbone.features(x)
    assert features.shape == (3, backbone.head.in_features)
    assert backbone.head(features).dtype == torch.float64
    assert backbone(x).shape == (3, 7)
    has_statistics = any(True for _ in backbone.buffers())
    assert has_statistics == (norm == "batch" and family != "logistic")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_of_one_keeps_its_axis(family: str) -> None:
    kind, settings, shape = FAMILIES[family]
    backbone = kind(**settings, norm="group")
    x = torch.randn(2, *shape)
    both = backbone(x)
    torch.testing.assert_close(torch.cat([backbone(x[:1]), backbone(x[1:])]), both, atol=1e-4, rtol=1e-4)


def test_dropout_acts_in_training_only() -> None:
    for backbone, x in (
        (McMahanCNN(image_size=8, dropout=0.5), torch.ones(2, 1, 8, 8)),
        (MLP(4, [32], dropout=0.5), torch.ones(2, 4)),
    ):
        torch.manual_seed(0)
        assert not torch.equal(backbone(x), backbone(x))
        backbone.eval()
        assert torch.equal(backbone(x), backbone(x))
