"""One client at a time, in the order of their ids, with nothing of the one before."""

from pathlib import Path

import torch
from torch import Tensor
from worlds import ONE_ROUND, BatchNormNet, Quadratic, even_data, train, train_quadratic

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


def test_clients_come_one_by_one_in_the_order_of_their_ids(tmp_path: Path) -> None:
    class Keep(FederatedCallback):
        def __init__(self) -> None:
            self.ids: list[list[int]] = []

        def on_cohort_start(self, cohort) -> None:
            self.ids.append(cohort.ids.tolist())

    keep = Keep()
    trainer = train([keep], tmp_path, max_rounds=1, participation=FixedParticipation([[5, 0, 3]]))
    assert keep.ids == [[0], [3], [5]]
    assert trainer.engine.order(torch.tensor([2, 4]), torch.tensor([1, 9]), torch.tensor([1, 9])).tolist() == [0, 1]
    assert trainer.engine.deal(torch.tensor([1, 2, 3, 4]), 2).tolist() == [0, 1, 1, 0]


def test_a_module_that_draws_globally_is_seeded_for_each_client(tmp_path: Path) -> None:
    """A random operation that no key can reach; other clients of the round change none of client 3's numbers."""

    class Drawing(Quadratic):
        def training_step(self, batch):
            noise = torch.distributions.Gamma(1.0, 1.0).sample()
            return super().training_step(batch) * (1 + noise)

    class Keep(FederatedCallback):
        def __init__(self) -> None:
            self.deltas: dict[int, torch.Tensor] = {}

        def on_cohort_end(self, cohort) -> None:
            self.deltas[int(cohort.ids[0])] = cohort.delta[0].clone()

    kept = []
    for clients in ([0, 3], [3]):
        kept.append(Keep())
        train_quadratic(
            [kept[-1]], tmp_path, module=Drawing(), participation=FixedParticipation([clients]), max_rounds=1
        )
    assert torch.equal(kept[0].deltas[3], kept[1].deltas[3])
    assert not torch.equal(kept[0].deltas[3], kept[0].deltas[0])
