"""Run by torchrun in test_processes.py: every method, in as many processes as there are."""

import sys
from pathlib import Path

import torch
from conftest import mlp
from methods import METHODS, train_method

from lfl.checkpointing import Checkpointing
from lfl.trainer import FederatedTrainer


def run(method: str, folder: Path, devices: int, **options: object) -> FederatedTrainer:
    settings = {
        "checkpoint": Checkpointing(every_n_rounds=2),
        "check_val_every_n_rounds": 1,
        "cohort_size": 2,
        **options,
    }
    return train_method(method, folder / method, mlp(dropout=0.3), engine="vectorized", devices=devices, **settings)


def summary(trainer: FederatedTrainer) -> dict[str, object]:
    found = {name: trainer.summary.last(name) for name in ("train/loss", "train_acc", "val_acc", "val_loss")}
    return {"vector": trainer.server.vector, "ledger": trainer.ledger.metrics(), **found}


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    results = {}
    for method in METHODS:
        results[method] = summary(run(method, folder, devices=2))
    resumed = run("scaffold-2", folder, devices=2, max_rounds=5, ckpt_path="last")
    results["resumed"] = summary(resumed)
    if resumed.is_global_zero:
        torch.save(results, folder / "results.pt")
