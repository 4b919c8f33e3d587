"""The trainer gives the bits of the loop by hand."""

import copy
from pathlib import Path

import pytest
import torch
from contract.methods import also

from lfl.aggregation import MeanAggregator
from lfl.data import MNIST5000, Digits, DirichletPartitioner, FederatedDataModule
from lfl.models import MLP, Classifier, McMahanCNN
from lfl.participation import UniformParticipation
from lfl.trainer import FederatedTrainer
from references.fedavg_loop import FedAvgLoop

LR = 0.05


def model_and_data(name: str) -> tuple[Classifier, FederatedDataModule]:
    """The MLP on digits, or McMahan's CNN on MNIST-5000, with 100 heterogeneous clients."""
    torch.manual_seed(0)
    backbone, source = (MLP(64, [64]), Digits()) if name == "mlp" else (McMahanCNN(), MNIST5000())
    return Classifier(backbone, lr=LR), FederatedDataModule(source, DirichletPartitioner(0.3), 100, 10)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("name", "rounds"), [("mlp", 6), also("cnn", 2)])
def test_trainer_equals_the_loop_by_hand_bit_for_bit(name: str, rounds: int, weighted: bool, tmp_path: Path) -> None:
    model, data = model_and_data(name)
    data.setup("fit")
    loop = FedAvgLoop(copy.deepcopy(model.backbone), data, LR, weighted=weighted)
    for number in range(rounds):
        loop.run_round(number + 1)
    trainer = FederatedTrainer(
        accelerator="cpu",
        engine="sequential",
        max_rounds=rounds,
        participation=UniformParticipation(10),
        aggregator=MeanAggregator("examples" if weighted else "uniform"),
        checkpoint=None,
        check_val_every_n_rounds=rounds,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
    )
    trainer.fit(model, data)
    assert torch.equal(trainer.server.vector, loop.vector)


def test_the_loop_notices_another_seed() -> None:
    model, data = model_and_data("mlp")
    data.setup("fit")
    vectors = [FedAvgLoop(copy.deepcopy(model.backbone), data, lr=0.1, seed=seed).run_round(1) for seed in (0, 0, 1)]
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])
