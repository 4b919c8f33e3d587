"""Systems that know nobody's speed, and what a run tells its system."""

from pathlib import Path

import pytest
import torch
from worlds import batch_norm, even_data, ragged_data, train

from lfl.callbacks import FederatedCallback
from lfl.client.work import LocalPhase
from lfl.federation import Federation
from lfl.participation import FixedParticipation
from lfl.round import Round
from lfl.system import Answers, ChannelSharing, EqualSpeeds

IDS = torch.tensor([1, 3])


def test_everybody_answers_unless_a_system_says_otherwise() -> None:
    assert [ids.tolist() for ids in ChannelSharing(1.0).answers(IDS, 1, 0)] == [[1, 3], [], []]
    assert Answers.of_all(IDS).late.dtype == torch.int64
    with pytest.raises(ValueError, match="ChannelSharing knows how long a round takes, and not a client"):
        ChannelSharing(1.0).client_seconds(IDS, None, 1, 0)


def test_what_a_run_tells_its_system(tmp_path: Path) -> None:
    """Sizes, examples of a round (two epochs; ten steps of five), classes, and the bits of a float64 model."""
    for phase, expected in ((LocalPhase(epochs=2), "epochs"), (LocalPhase(steps=10), "steps")):
        system = EqualSpeeds()
        data = ragged_data()
        trainer = train([], tmp_path, data=data, system=system, max_rounds=1, local_phases=[phase])
        workload = system.workload
        assert workload is not None
        assert workload.sizes.tolist() == data.client_sizes.tolist()
        found = workload.examples(IDS, 1, 0)
        if expected == "epochs":
            assert found.tolist() == (2 * data.client_sizes[IDS]).tolist()
        else:
            epochs, rest = 10 // -(-data.client_sizes[IDS] // 5), 10 % -(-data.client_sizes[IDS] // 5)
            assert (
                found.tolist()
                == (epochs * data.client_sizes[IDS] + (5 * rest).clamp(max=data.client_sizes[IDS])).tolist()
            )
        counts = workload.label_counts()
        assert counts.sum(dim=1).tolist() == data.client_sizes.tolist()
        assert workload.model_bits == trainer.layout.dim * 64


class Bits(FederatedCallback):
    """What the ledger charged each participant, beside what the clock was given."""

    def on_run_start(self, federation: Federation) -> None:
        self.federation = federation

    def on_round_end(self, round: Round) -> None:
        self.up = round.totals.uplink_bits
        self.up_of_ledger = sum(self.federation.ledger.up_bits.values())
        self.down_of_ledger = sum(self.federation.ledger.down_bits.values())
        self.down = self.federation.ledger.received_bits


def test_the_clock_counts_all_bits_of_the_ledger(tmp_path: Path) -> None:
    """Buffers (BatchNorm's statistics) too, both ways."""
    bits = Bits()
    train([bits], tmp_path, batch_norm(), even_data(), system=EqualSpeeds(), participation=FixedParticipation([[0, 2]]))
    buffers = 2 * 64 * 64
    assert int(bits.up.sum()) == bits.up_of_ledger == 2 * (64 * (4 * 64 + 4 + 128) + buffers)
    assert int(bits.down.sum()) == bits.down_of_ledger
    assert len(bits.down) == 2
