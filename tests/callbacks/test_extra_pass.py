"""A second pass over a batch goes unnoticed by the module's buffers."""

from pathlib import Path

import torch
from worlds import ONE_ROUND, BatchNormNet, even_data, train

from lfl.callbacks import SharpnessAware
from lfl.models import Classifier


def test_batch_norm_sees_a_batch_once(tmp_path: Path) -> None:
    def batch_norm() -> Classifier:
        torch.manual_seed(0)
        return Classifier(BatchNormNet(), lr=0.1)

    states = []
    for stack in ([], [SharpnessAware(0.5)]):
        # BatchNorm stands before what is trained: its statistics are those of the data, whatever the steps are.
        trainer = train(stack, tmp_path, batch_norm(), even_data(batch_size=5), **ONE_ROUND)
        states.append(trainer.server_state_dict())
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(states[0][f"backbone.norm.{name}"], states[1][f"backbone.norm.{name}"]), name
    assert states[1]["backbone.norm.num_batches_tracked"] > 1
    assert not torch.equal(states[0]["backbone.head.weight"], states[1]["backbone.head.weight"])
