"""One client at a time."""

from pathlib import Path

import torch
from torch import Tensor
from worlds import ONE_ROUND, BatchNormNet, even_data, train

from lfl.callbacks import FederatedCallback
from lfl.models import Classifier
from lfl.participation import FixedParticipation


def test_a_second_client_starts_with_nothing_of_the_first(tmp_path: Path) -> None:
    """BatchNorm statistics and momentum of client 0 do not reach client 2: alone it does the same."""

    def module() -> Classifier:
        torch.manual_seed(0)
        return Classifier(BatchNormNet(), lr=0.1, momentum=0.9)

    class Keep(FederatedCallback):
        def __init__(self) -> None:
            self.kept: dict[int, Tensor] = {}

        def on_cohort_end(self, cohort) -> None:
            self.kept[int(cohort.ids[0])] = torch.cat([cohort.delta[0], cohort.buffers[0]])

    together, alone = Keep(), Keep()
    train([together], tmp_path, module(), even_data(), **ONE_ROUND)
    train([alone], tmp_path, module(), even_data(), **{**ONE_ROUND, "participation": FixedParticipation([[2]])})
    assert torch.equal(together.kept[2], alone.kept[2])
