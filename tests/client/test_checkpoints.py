"""Activation checkpoints change no number, also where what they hide draws."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from worlds import ragged_data, train

from lfl.client.checkpoints import client_random


class Deep(LightningModule):
    """Draws before, in and after a part that may be checkpointed, or checkpointed twice."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.first, self.second, self.last = nn.Linear(64, 12), nn.Linear(12, 12), nn.Linear(12, 4)

    def part(self, x: Tensor) -> Tensor:
        inner = self.inner(x) if self.kind != "nested" else checkpoint(self.inner, x, use_reentrant=False)
        return F.dropout(inner, 0.3) + 0.1 * torch.randn_like(inner)

    def inner(self, x: Tensor) -> Tensor:
        return F.dropout(self.second(x), 0.2).tanh()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = F.dropout(self.first(batch[0].flatten(1)), 0.1)
        x = self.part(x) if self.kind == "plain" else checkpoint(self.part, x, use_reentrant=self.kind == "reentrant")
        return F.cross_entropy(self.last(F.dropout(x, 0.1)), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore:.*(sequential engine|is not recorded)")
@pytest.mark.parametrize("options", [{"engine": "sequential", "trace_steps": False}, {"engine": "auto"}], ids=str)
@pytest.mark.parametrize("kind", ["checkpointed", "nested", "reentrant"])
def test_a_checkpoint_changes_no_number(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    settings = {**options, "max_rounds": 2, "local_epochs": 2}
    trainers = [train([], tmp_path, Deep(name), ragged_data(), **settings) for name in ("plain", kind)]
    one, other = (trainer.server.vector for trainer in trainers)
    torch.testing.assert_close(other, one, rtol=0, atol=1e-12)


def test_torchs_checkpoint_is_itself_again() -> None:
    module = torch.utils.checkpoint
    own = module.CheckpointFunction
    with client_random(torch.tensor(3)) as random:
        torch.rand(2)
        assert module.CheckpointFunction is not own
    assert random.draws == 1
    assert module.CheckpointFunction is own
