"""Choosing an engine: what cannot be vectorized or recorded is refused with the reason."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from worlds import ONE_ROUND, Strange, batch_norm, equal_data, even_data, mlp, ragged_data, train

from lfl.client.model import ClientModel
from lfl.client.work import LocalWork
from lfl.engine.select import EngineSettings, automatic_cohort_size, build_training
from lfl.models import CifarResNet, Classifier


def test_vectorized_refuses_batch_norm_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`engine=vectorized` cannot train Classifier: .*running_mean"):
        train([], tmp_path, batch_norm(), even_data(), engine="vectorized", **ONE_ROUND)


def test_a_counter_in_the_step_is_reason_enough_not_to_vectorize(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="changes the buffer 'steps' in place"):
        train([], tmp_path, Strange(), ragged_data(), engine="vectorized")


def test_a_module_that_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot record the step of Classifier: it changes the buffer 'backbone"):
        train([], tmp_path, Classifier(CifarResNet(8, in_channels=1)), equal_data(), trace_steps=True)


class Large(LightningModule):
    """2^20 numbers in float64: 8 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2**20, dtype=torch.float64))


def test_a_cohort_has_parameters_of_256_mib_and_128_clients_at_most() -> None:
    data = ragged_data()
    assert automatic_cohort_size(ClientModel(Large()), data, seed=0) == 32
    assert automatic_cohort_size(ClientModel(mlp()), data, seed=0) == 128


def test_a_resumed_run_goes_on_with_the_engine_it_had(tmp_path: Path) -> None:
    data = ragged_data()
    data.setup("fit")
    for name in ("sequential", "vectorized"):
        settings = EngineSettings("auto", resumed={"name": name})
        assert build_training(settings, ClientModel(mlp()), data, LocalWork(), [], seed=0).engine.name == name


def test_a_cohort_is_not_larger_than_a_round() -> None:
    data = ragged_data()
    data.setup("fit")
    for settings, size in (
        (EngineSettings("vectorized", clients_per_round=5), 5),
        (EngineSettings("vectorized", cohort_size=9, clients_per_round=5), 9),
        (EngineSettings("sequential", cohort_size=9), 1),
    ):
        assert build_training(settings, ClientModel(mlp()), data, LocalWork(), [], seed=0).engine.cohort_size == size
