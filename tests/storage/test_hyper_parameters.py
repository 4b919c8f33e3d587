"""Hyper-parameters in checkpoints: plain ones, so that a module loads from them without arguments."""

from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule

from lfl.storage.hyper_parameters import saved_hyper_parameters
from lfl.storage.plain import is_loadable


class Net(LightningModule):
    def __init__(self, width: Any = 3, rate: float = 0.5) -> None:
        super().__init__()
        self.save_hyperparameters()


class Data(LightningDataModule):
    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()


def test_under_lightnings_names() -> None:
    entries = saved_hyper_parameters(Net(width={"a": np.float64(0.5), "b": [np.int64(3), (1, 2)]}), Data())
    assert entries["hyper_parameters"] == {"width": {"a": 0.5, "b": [3, (1, 2)]}, "rate": 0.5}
    assert entries["datamodule_hyper_parameters"] == {"size": 2}
    assert is_loadable(entries)


def test_what_cannot_be_loaded_is_left_out_and_named() -> None:
    with pytest.warns(UserWarning, match=r"leave out the hyper-parameter\(s\) width of Net"):
        entries = saved_hyper_parameters(Net(width=torch.nn.functional.relu))
    assert entries["hyper_parameters"] == {"rate": 0.5}


def test_without_any() -> None:
    module = LightningModule()
    assert saved_hyper_parameters(module) == {}
    assert not hasattr(module, "_hparams")  # nothing is left on the module
