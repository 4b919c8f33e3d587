"""What tests of recorded and compiled steps share."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.methods import METHODS, train_method
from worlds import cnn, equal_data

from lfl.client.step import StepInput
from lfl.data import RandomCrop

NOTHING = StepInput(batch=(), keys=torch.zeros(1, dtype=torch.int64), anchor=torch.zeros(1))

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")


def both(method: str, folder: Path, **options: Any) -> list[Any]:
    """The same run without and with recorded steps."""
    assert method in METHODS
    return [
        train_method(
            method,
            folder,
            cnn(dropout=0.3),
            equal_data(train_transforms=[RandomCrop(1)]),
            trace_steps=trace,
            **options,
        )
        for trace in (False, True)
    ]
