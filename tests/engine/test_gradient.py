"""The innermost gradient functions of a cohort."""

import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from worlds import ragged_data, train


class Failing(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 4)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        if len(batch[1]) == 3:
            raise RuntimeError("three is unlucky")
        return nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_an_error_in_a_step_says_where(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="unlucky") as caught:
        train([], tmp_path, Failing(), ragged_data(), max_rounds=20)
    assert re.fullmatch(r"in round \d+, local step \d+ of client\(s\) \[\d\]", caught.value.__notes__[0])
