from collections.abc import Callable

import pytest
import torch
from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.utils.data import DataLoader, TensorDataset

from lfl.models import MLP, CifarResNet, Classifier, LeNet5, McMahanCNN, ResNet

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    # Lightning 2.6 asks torch in a way that torch 2.14 deprecates.
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
]

CLIENTS, EXAMPLES = 2, 3
VMAPPABLE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cnn": (lambda: McMahanCNN(image_size=8), (1, 8, 8)),
    "cnn-group": (lambda: McMahanCNN(image_size=8, norm="group"), (1, 8, 8)),
    "mlp": (lambda: MLP(12, [8]), (12,)),
    "mlp-group": (lambda: MLP(12, [8], norm="group"), (12,)),
    "logistic": (lambda: MLP(12, []), (12,)),
    "lenet": (lambda: LeNet5(), (1, 28, 28)),
    "cifar-resnet-a": (lambda: CifarResNet(8, norm="group"), (3, 8, 8)),
    "cifar-resnet-b": (lambda: CifarResNet(8, norm="group", shortcut="B"), (3, 8, 8)),
    "resnet-18": (lambda: ResNet(18, norm="group"), (3, 32, 32)),
    "resnet-18-cifar": (lambda: ResNet(18, norm="group", stem="cifar"), (3, 8, 8)),
}


class Step(nn.Module):
    """Calls the training step, so that functional_call can reach it; returns the loss and what was logged."""

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, *batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        logs: dict[str, Tensor] = {}
        self.module.log = lambda name, value, **_: logs.update({name: value.detach()})
        return self.module.training_step(batch, 0), logs


@pytest.mark.parametrize("name", VMAPPABLE)
def test_clients_in_one_vmap_call_equal_one_at_a_time(name: str) -> None:
    build, shape = VMAPPABLE[name]
    torch.manual_seed(0)
    steps = [Step(Classifier(build()).double()) for _ in range(CLIENTS)]
    parameters, buffers = stack_module_state(steps)
    assert not buffers
    x = torch.randn(CLIENTS, EXAMPLES, *shape, dtype=torch.float64)
    y = torch.randint(0, 10, (CLIENTS, EXAMPLES))

    def loss(params: dict[str, Tensor], *batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return functional_call(steps[0], params, batch)

    together = vmap(grad_and_value(loss, has_aux=True), randomness="different")(parameters, x, y)
    grads, (losses, logs) = together
    for c, step in enumerate(steps):
        value, log = step(x[c], y[c])
        value.backward()
        torch.testing.assert_close(losses[c], value.detach(), atol=1e-9, rtol=0)
        torch.testing.assert_close(logs["train_acc"][c], log["train_acc"], atol=0, rtol=0)
        for key, parameter in step.named_parameters():
            torch.testing.assert_close(grads[key][c], parameter.grad, atol=1e-9, rtol=1e-9)


def test_loss_and_accuracy_by_hand() -> None:
    """Logits are (x, 0): losses log(1 + e^-x) for class 0; x = 2, -1, 0 predict classes 0, 1, 0 (the first maximum)."""
    module = Classifier(MLP(1, [], num_classes=2))
    with torch.no_grad():
        module.backbone.head.weight.copy_(torch.tensor([[1.0], [0.0]]))
        module.backbone.head.bias.zero_()
    loss, logs = Step(module)(torch.tensor([[2.0], [-1.0], [0.0]]), torch.tensor([0, 0, 0]))
    # (log(1 + e^-2) + log(1 + e) + log 2) / 3 = (0.126928 + 1.313262 + 0.693147) / 3
    torch.testing.assert_close(loss, torch.tensor(0.711112), atol=1e-6, rtol=0)
    torch.testing.assert_close(logs["train_acc"], torch.tensor(2 / 3))


def test_a_backbone_is_named_in_the_configuration() -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--model", type=LightningModule)
    backbone = {"class_path": "lfl.models.MLP", "init_args": {"in_features": 4, "hidden": [8, 6], "norm": "group"}}
    model = {"class_path": "lfl.models.Classifier", "init_args": {"backbone": backbone, "lr": 0.5}}
    parsed = parser.parse_object({"model": model}).model.init_args
    assert parsed.backbone.init_args.as_dict() == {
        "in_features": 4,
        "hidden": [8, 6],
        "num_classes": 10,
        "norm": "group",
        "groups": 2,
        "dropout": 0.0,
    }
    assert (parsed.lr, parsed.momentum) == (0.5, 0.0)


@pytest.mark.parametrize(
    "wrong",
    ["MLP --model.backbone.norm=layer", "ResNet --model.backbone.norm=none", "McMahanCNN --model.backbone.padding=1"],
)
def test_settings_that_do_not_exist_are_refused_when_parsing(wrong: str) -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--model", type=LightningModule)
    with pytest.raises(ArgumentError, match=r"Expected a typing\.Literal\[.*\]\. Got value: (layer|none|1)"):
        parser.parse_args(["--model=lfl.models.Classifier", *f"--model.backbone=lfl.models.{wrong}".split()])


def test_probabilities() -> None:
    module = Classifier(MLP(4, [], num_classes=3))
    x = torch.randn(1, 4)
    probabilities = module.predict_step((x, torch.zeros(1)), 0)
    assert probabilities.shape == (1, 3)
    torch.testing.assert_close(probabilities, torch.softmax(module(x), dim=1))


def test_optimizer_has_the_settings() -> None:
    optimizer = Classifier(MLP(4), lr=0.3, momentum=0.9, weight_decay=1e-3).configure_optimizers()
    assert isinstance(optimizer, torch.optim.SGD)
    assert {k: optimizer.defaults[k] for k in ("lr", "momentum", "weight_decay")} == {
        "lr": 0.3,
        "momentum": 0.9,
        "weight_decay": 1e-3,
    }


@pytest.fixture
def loader() -> DataLoader[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (30,), generator=generator)
    x = torch.randn(30, 4, generator=generator) * 0.1 + nn.functional.one_hot(y, 4)
    return DataLoader(TensorDataset(x, y), batch_size=8)


def trainer(**settings: object) -> Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(accelerator="cpu", **quiet, **settings)


@pytest.mark.parametrize("norm", ["none", "batch", "group"])
def test_every_stage_runs_under_lightning(norm: str, loader: DataLoader[tuple[Tensor, ...]]) -> None:
    module = Classifier(MLP(4, [8], num_classes=3, norm=norm))
    run = trainer(fast_dev_run=True)
    run.fit(module, loader, loader)
    assert {"train_acc", "val_loss", "val_acc"} <= set(run.callback_metrics)
    run.test(module, loader, verbose=False)
    assert {"test_loss", "test_acc"} <= set(run.callback_metrics)
    (probabilities,) = run.predict(module, loader)
    assert probabilities.shape == (8, 3)


def test_central_training_learns(loader: DataLoader[tuple[Tensor, ...]]) -> None:
    torch.manual_seed(0)
    module = Classifier(MLP(4, [], num_classes=3), lr=1.0)
    run = trainer(max_epochs=10, log_every_n_steps=1)
    run.fit(module, loader, loader)
    assert run.callback_metrics["val_acc"] == 1.0
    # The last batch has 6 of 30 examples: the epoch's mean weights batches by their size.
    x, y = loader.dataset.tensors
    mean = nn.functional.cross_entropy(module(x), y)
    torch.testing.assert_close(run.callback_metrics["val_loss"], mean.detach(), atol=1e-6, rtol=0)
