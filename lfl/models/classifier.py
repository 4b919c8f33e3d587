"""A LightningModule for classification, for ``lfl`` and for ``lightning.Trainer`` alike."""

import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn, optim
from typing_extensions import override

from lfl.models.backbone import Backbone


class Classifier(LightningModule):
    """Trains a backbone on batches ``(x, y)`` with cross entropy and SGD, and logs the accuracy.

    ``training_step`` uses plain tensor operations only, so that vmap can train clients together.

    Args:
        backbone: any module that maps a batch ``x`` to logits ``(examples, classes)``.
        lr: learning rate of SGD.
        momentum: momentum of SGD.
        weight_decay: weight decay of SGD.

    Example:
        >>> from lfl.models import MLP
        >>> model = Classifier(MLP(in_features=4, hidden=[], num_classes=3), lr=0.5)
        >>> model.configure_optimizers().defaults["lr"]
        0.5
    """

    def __init__(
        self,
        # `Backbone` comes first so that the command line takes `MLP` and `ResNet` as our classes, not torchvision's.
        backbone: Backbone | nn.Module,
        lr: float = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay

    @override
    def forward(self, x: Tensor) -> Tensor:
        """The logits ``(examples, classes)``."""
        logits: Tensor = self.backbone(x)
        return logits

    @override
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        del batch_idx
        loss, accuracy = self._evaluate(batch)
        # The loss is not logged here, since the federated trainer logs it with the terms that callbacks add to it.
        self.log("train_acc", accuracy, on_step=False, on_epoch=True, batch_size=len(batch[1]))
        return loss

    @override
    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        del batch_idx
        self._log_evaluation("val", batch)

    @override
    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        del batch_idx
        self._log_evaluation("test", batch)

    @override
    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The probabilities ``(examples, classes)``."""
        del batch_idx
        return self(batch[0]).softmax(dim=1)  # type: ignore[no-any-return]  # Module.__call__ returns Any

    @override
    def configure_optimizers(self) -> optim.Optimizer:
        return optim.SGD(self.parameters(), lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def _evaluate(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean cross entropy and accuracy of a batch, as tensors."""
        x, y = batch
        logits = self(x)
        return F.cross_entropy(logits, y), (logits.argmax(dim=1) == y).to(logits.dtype).mean()

    def _log_evaluation(self, stage: str, batch: tuple[Tensor, Tensor]) -> None:
        loss, accuracy = self._evaluate(batch)
        self.log_dict({f"{stage}_loss": loss, f"{stage}_acc": accuracy}, batch_size=len(batch[1]))
