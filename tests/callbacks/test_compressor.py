"""Codecs with error feedback: what all of them keep, and each tensor by itself."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import mlp, train

from lfl.callbacks import QSGD, STC, FederatedCallback, PersonalParameters, RandomK, Sign, TopK
from lfl.callbacks.compressor import Compressor
from lfl.participation import FixedParticipation
from lfl.randomness import client_keys

# MLP 64-12-4: the sizes of its weights and biases.
SIZES = [64 * 12, 12, 12 * 4, 4]
D = 832

CODECS: dict[str, Any] = {
    "sign": Sign,
    "sign per tensor": lambda: Sign(scope="tensor"),
    "top-k": lambda: TopK(0.1),
    "top-k per tensor": lambda: TopK(0.1, scope="tensor"),
    "random-k": lambda: RandomK(0.1),
    "stc": lambda: STC(0.1),
}


class Flow(FederatedCallback):
    """Sums over clients of the updates that came in, and of what was sent."""

    def __init__(self) -> None:
        self.came, self.sent = 0.0, 0.0

    def on_cohort_end(self, cohort: Any) -> None:
        self.came += cohort.delta.sum(dim=0)

    def on_aggregate(self, round: Any) -> None:
        self.sent += round.update * round.num_reported


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("codec", CODECS)
def test_what_is_sent_and_what_is_kept_is_what_came(codec: str, engine: str, tmp_path: Path) -> None:
    flow, compressor = Flow(), CODECS[codec]()
    trainer = train([compressor, flow], tmp_path, max_rounds=4, engine=engine)
    kept = trainer.store.gather(compressor.slot, torch.arange(8)).sum(dim=0)
    assert kept.norm() > 1e-2
    torch.testing.assert_close(flow.sent + kept, flow.came, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [lambda f: Sign(f), lambda f: TopK(0.1, f), lambda f: RandomK(0.1, f)])
def test_without_feedback_nothing_is_kept(make: Any, tmp_path: Path) -> None:
    """The first round sends the same with top-k and signs; later ones do not."""
    without, once = (train([make(False)], tmp_path, max_rounds=rounds) for rounds in (2, 1))
    fed, fed_once = (train([make(True)], tmp_path, max_rounds=rounds) for rounds in (2, 1))
    assert without.store.slots == ()
    assert (without.server.vector - fed.server.vector).norm() > 1e-3
    if not isinstance(once.stack[0], RandomK):
        assert torch.equal(once.server.vector, fed_once.server.vector)


def compressed(codec: Compressor, rows: Tensor) -> Tensor:
    ids = torch.arange(len(rows))
    return codec.compress(rows, ids, client_keys(ids, "test")).values


@pytest.mark.parametrize("codec", [TopK(0.1), RandomK(0.1), STC(0.1), Sign(), QSGD(4), QSGD(4, coding="fixed")])
def test_codecs_scale_with_the_update(codec: Compressor) -> None:
    """``C(c a) = c C(a)``: the rate that is in an update does not matter, nor does who is compressed beside it."""
    rows = torch.randn(3, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(compressed(codec, 8 * rows), 8 * compressed(codec, rows))
    assert torch.equal(compressed(codec, rows[:2]), compressed(codec, rows)[:2])


def test_what_is_kept_is_shorter_than_what_came() -> None:
    """``|a - C(a)|^2 <= (1 - k/D) |a|^2`` of the largest, with equality in the mean of random ones; k = D is exact."""
    rows = torch.randn(4000, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    length = rows.square().sum(dim=1)

    def kept(codec: Compressor) -> Tensor:
        return (rows - compressed(codec, rows)).square().sum(dim=1) / length

    assert (kept(TopK(5)) <= 1 - 5 / 20).all()
    share = kept(RandomK(5))
    assert abs(float(share.mean()) - 0.75) < 4 * float(share.std()) / math.sqrt(len(rows))
    torch.testing.assert_close(kept(Sign()), 1 - rows.abs().sum(dim=1).square() / (20 * length), rtol=0, atol=1e-12)
    assert (kept(STC(5)) < 1).all()
    for codec in (TopK(20), RandomK(20), RandomK(1.0, error_feedback=False)):
        assert torch.equal(compressed(codec, rows), rows)


@pytest.mark.parametrize(("precision", "float_bits"), [("32-true", 32), ("64-true", 64)])
def test_bits_of_each_tensor(precision: str, float_bits: int, tmp_path: Path) -> None:
    """A bit an entry and a float a scale; k = max(1, ceil(size / 10)) values with indices inside their tensor."""
    counts = [77, 2, 5, 1]
    expected = {
        "sign": D + float_bits,
        "sign per tensor": D + 4 * float_bits,
        "top-k": 84 * (float_bits + 10),
        "top-k per tensor": sum(k * (float_bits + math.ceil(math.log2(n))) for k, n in zip(counts, SIZES, strict=True)),
        "random-k": 84 * float_bits,
    }
    for codec, bits in expected.items():
        trainer = train([CODECS[codec]()], tmp_path, mlp(), max_rounds=1, precision=precision)
        assert trainer.ledger.up_bits == {"update": 5 * bits}, codec


@pytest.mark.parametrize(
    ("codec", "shares"),
    [(Sign(scope="tensor"), [Sign()] * 4), (TopK(0.1, scope="tensor"), [TopK(k) for k in (77, 2, 5, 1)])],
)
def test_each_tensor_is_compressed_by_itself(codec: Compressor, shares: list[Compressor], tmp_path: Path) -> None:
    """One client, one round: what arrives is what is left of each tensor of FedAvg's update."""
    start, plain, ours = (
        train(stack, tmp_path, max_rounds=rounds, participation=FixedParticipation([[0]])).server.vector
        for stack, rounds in (([], 0), ([], 1), ([codec], 1))
    )
    parts = (plain - start)[None].split(SIZES, dim=1)
    expected = torch.cat([compressed(own, part) for own, part in zip(shares, parts, strict=True)], dim=1)[0]
    torch.testing.assert_close(ours - start, expected, rtol=0, atol=1e-14)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`scope=tensor` of TopK needs a share in \(0, 1\] of each tensor, not `k=5`"):
        TopK(5, scope="tensor")
    with pytest.raises(ValueError, match=r"`scope=tensor` of Sign needs updates of all parameters, .* use `scope=glo"):
        train([PersonalParameters(["*.head.*"]), Sign(scope="tensor")], tmp_path)
