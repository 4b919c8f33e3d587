"""What every backbone must satisfy."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from lfl.models import MLP, Backbone, CifarResNet, LeNet5, McMahanCNN, ResNet


def num_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (lambda: McMahanCNN(), 1_663_370),
        (lambda: McMahanCNN(in_channels=3, image_size=32), 2_156_490),
        (lambda: McMahanCNN(in_channels=1, image_size=28, padding=0), 582_026),
        (lambda: McMahanCNN(in_channels=3, image_size=32, padding=0), 878_538),
        (lambda: McMahanCNN(in_channels=3, image_size=32, padding=0, num_classes=100), 924_708),
        (lambda: MLP(), 199_210),
        (lambda: MLP(in_features=784, hidden=[]), 7_850),
        (lambda: LeNet5(), 61_706),
        (lambda: LeNet5(in_channels=3, image_size=32), 62_006),
        (lambda: CifarResNet(depth=20), 269_722),
        (lambda: CifarResNet(depth=56), 853_018),
        (lambda: CifarResNet(depth=110), 1_727_962),
        (lambda: CifarResNet(depth=110, shortcut="B", norm="group"), 1_730_714),
        (lambda: ResNet(depth=18), 11_181_642),
        (lambda: ResNet(depth=18, num_classes=100, norm="group"), 11_227_812),
        (lambda: ResNet(depth=18, num_classes=200), 11_279_112),
        (lambda: ResNet(depth=18, stem="cifar"), 11_173_962),
        (lambda: ResNet(depth=50), 23_528_522),
        (lambda: ResNet(depth=50, num_classes=100), 23_712_932),
    ],
)
def test_parameter_counts(build: Callable[[], Backbone], count: int) -> None:
    assert num_parameters(build()) == count


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


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: McMahanCNN(image_size=12, padding=0), r"`image_size=12` with `padding=0` must be at least 16"),
        (lambda: McMahanCNN(image_size=3), r"`image_size=3` with `padding=2` must be at least 4"),
        (lambda: McMahanCNN(norm="group", groups=5), r"`groups=5` must divide the 32 channels"),
        (lambda: MLP(4, [8], norm="group", groups=0), r"`groups=0` must divide the 8 channels"),
        (lambda: LeNet5(image_size=27), r"`image_size=27` of LeNet5 must be a positive even number"),
        (lambda: CifarResNet(depth=18), r"`depth=18` of CifarResNet must be 6n\+2"),
    ],
)
def test_errors(build: Callable[[], Backbone], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
