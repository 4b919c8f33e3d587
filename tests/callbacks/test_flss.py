"""FLSS: rounds by hand, the schedule, and bytes on the wire."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from two_clients import Points, path_of, two_clients
from worlds import Bystander, Quadratic, QuadraticData, Rounds, mlp, train, train_quadratic

from lfl.callbacks import FLSS, FLSSVRG, SSF, FederatedCallback, PersonalParameters, Scaffold, Sign
from lfl.callbacks.flss import layer_sizes
from lfl.checkpointing import Checkpointing
from lfl.client.layout import ParameterLayout
from lfl.comm import Payload
from lfl.participation import FixedParticipation
from lfl.randomness import generator
from lfl.subspace import LayerwiseSubspace
from lfl.subspace.base import orthonormal_rows


def close(found: list[list[float]], expected: list[list[float]]) -> None:
    double = torch.float64
    torch.testing.assert_close(
        torch.tensor(found, dtype=double), torch.tensor(expected, dtype=double), rtol=0, atol=1e-14
    )


def projector(rows: Tensor) -> Tensor:
    return rows.mT @ rows


@pytest.mark.parametrize(("rounds", "is_said"), [(2, True), (3, True), (4, False)])
def test_a_warm_up_of_the_whole_run_is_said(
    rounds: int, is_said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "lightning"):
        path_of([FLSS(warmup_rounds=3, rank=1)], tmp_path, rounds)
    said = [line for line in caplog.messages if "FLSS" in line]
    expected = (
        "FLSS projects nothing in this run, which trains as FedAvg: `warmup_rounds=3` is not below `max_rounds={}`."
    )
    assert said == [expected.format(rounds)] * is_said


@pytest.mark.parametrize(("attenuation", "last"), [(0.25, [3.0, 1.0]), (1.0, [2.75, 1.75])])
def test_four_rounds_by_hand(attenuation: float, last: list[float], tmp_path: Path) -> None:
    """L = 1, R = 1, s = 2, update_scale = 2, from x = 0; delta_1 = (4 - x_1, -x_2) / 2, delta_2 = (0, 2 - x_2).

    1. Warm-up: (2, 0) and (0, 2), mean (1, 1), x = (1, 1). P = (1, 1) / sqrt 2, Sigma = sqrt 2.
    2. Projected: (1.5, -.5) and (0, 1) have z = 1 / sqrt 2 both, P^T zbar = (.5, .5), twice that: x = (2, 2).
    3. Sampled: (1, -1) and (0, 0), mean (.5, -.5), x = (2.5, 1.5). It is orthogonal to P, with norm sqrt .5: with
       lambda = 1/4 it is longer than lambda Sigma = sqrt 2 / 4, and P = (1, -1) / sqrt 2; with 1 it is dropped.
    4. Projected: (.75, -.75) and (0, .5), mean (.375, -.125): twice its projection is (.5, -.5), or (.25, .25).
    """
    flss = FLSS(warmup_rounds=1, rank=1, sample_every=2, attenuation=attenuation, update_scale=2.0)
    path, _ = path_of([flss], tmp_path, 4)
    close(path, [[1.0, 1.0], [2.0, 2.0], [2.5, 1.5], last])
    assert flss.basis.singular_values.tolist() == pytest.approx([0.5**0.5 if attenuation < 1 else 2**0.5])


def test_four_rounds_with_signs_by_hand(tmp_path: Path) -> None:
    """L = 1, R = 1, s = 2, lambda = 1/4, and ``C(a) = |a|_1 / 2 sign(a)`` with feedback where rounds are full.

    1. (2, 0): C = (1, 1), e_1 = (1, -1); (0, 2): C = (1, 1), e_2 = (-1, 1). x = (1, 1), P = (1, 1) / sqrt 2.
    2. Projected, coefficients as they are: x = (1.5, 1.5), e_i stay.
    3. (1.25, -.75) + e_1 = (2.25, -1.75): C = (2, -2), e_1 = (.25, .25). (0, .5) + e_2 = (-1, 1.5): C = (-1.25, 1.25),
       e_2 = (.25, .25). Mean (.375, -.375), x = (1.875, 1.125). Longer than sqrt 2 / 4: P = (1, -1) / sqrt 2.
    4. Projected: (1.0625, -.5625) and (0, .875), mean (.53125, .15625): P^T zbar = (.1875, -.1875).
    """
    stack = [FLSS(warmup_rounds=1, rank=1, sample_every=2, attenuation=0.25), Sign()]
    path, trainer = path_of(stack, tmp_path, 4)
    close(path, [[1.0, 1.0], [1.5, 1.5], [1.875, 1.125], [2.0625, 0.9375]])
    close(trainer.store.gather("sign/error", torch.arange(2)).tolist(), [[0.25, 0.25]] * 2)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    "flss",
    [
        FLSS(warmup_rounds=2, rank=3, sample_every=1),
        FLSS(warmup_rounds=2, rank=832, sample_every=None, update_scale=3.0),
        FLSS(warmup_rounds=9, rank=3),
    ],
    ids=["every round sampled", "R = D", "warm-up only"],
)
def test_limits_are_fedavg_to_the_bit(flss: FLSS, engine: str, tmp_path: Path) -> None:
    options = {"max_rounds": 5, "engine": engine, "precision": "32-true"}
    fedavg, ours = (train(stack, tmp_path, mlp(dropout=0.3), **options) for stack in ([], [flss]))
    assert torch.equal(ours.server.vector, fedavg.server.vector)
    assert ours.ledger.totals == fedavg.ledger.totals


@pytest.mark.parametrize(("attenuation", "rank"), [(0.25, 1), (1.0, 1), (1.0, 2)])
def test_what_the_subspace_leaves_out(attenuation: float, rank: int, tmp_path: Path) -> None:
    """The rounds of above, without a scale: x = (1, 1), (1.5, 1.5), and in round 3 deltas (1.25, -.75), (0, .5).

    Round 2: |delta|^2 = 2.5 and 1, of which (1, 1) / sqrt 2 keeps .5 and .5. Round 3: the mean (.625, -.125) has energy
    .40625, of which it keeps .125. Then the energy lambda^2 2 + .40625 has one direction, or all of it two.
    """
    flss, rounds = FLSS(1, rank=rank, sample_every=2, attenuation=attenuation), Rounds()
    if rank == 2:  # as many as the plane has: FedAvg, without a basis
        assert path_of([flss, rounds], tmp_path, 3)[0] == path_of([], tmp_path, 3)[0]
        assert not any("flss/rho" in round.metrics or "flss/outside" in round.metrics for round in rounds.kept)
        return
    path_of([flss, rounds], tmp_path, 3)
    first, second, third = (round.metrics for round in rounds.kept)
    assert float(first["flss/rho"]) == float(second["flss/rho"]) == pytest.approx(0.0, abs=1e-15)
    assert float(second["flss/outside"]) == pytest.approx(2.5 / 3.5)
    assert float(third["flss/move_outside"]) == pytest.approx(1 - 0.125 / 0.40625)
    energy = attenuation**2 * 2 + 0.40625
    assert float(third["flss/rho"]) == pytest.approx(1 - float(flss.basis.singular_values.square()) / energy)
    seen = torch.tensor([[attenuation, attenuation], [0.625, -0.125]], dtype=torch.float64)
    assert float(third["flss/rho"]) == pytest.approx(float(torch.linalg.svdvals(seen)[1] ** 2) / energy)
    assert "flss/outside" not in third
    assert "flss/move_outside" not in second


class Layers(LightningModule):
    """``1/2 (y - b)^T A (y - b)`` of two layers of two numbers each."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.ParameterList([torch.zeros(2)]) for _ in range(2))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        curvature, centre = batch
        return 0.5 * (curvature * (torch.cat([self.a[0], self.b[0]]) - centre) ** 2).sum(dim=-1).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


@pytest.mark.parametrize(
    ("scope", "last", "numbers"), [("layer", [1.5, 1.5, 0.0, 5.0], 2), ("global", [23 / 18, 23 / 18, 0.0, 92 / 18], 1)]
)
def test_a_subspace_a_layer_by_hand(scope: Any, last: list[float], numbers: int, tmp_path: Path) -> None:
    """L = 1, R = 1; the first layer is that of above, in the second delta_1 = (-x_3, 8 - x_4) / 2, delta_2 = 4 - x_4.

    1. Warm-up: means (1, 1) and (0, 4). P has (1, 1) / sqrt 2 and (0, 1), or (1, 1, 0, 4) / sqrt 18 for both.
    2. Means (.75, .25) and (0, 1): (.5, .5) and (0, 1), or 5 / 18 of (1, 1, 0, 4).
    Round 3 sends down what round 2 has moved, the coefficients.
    """
    data = QuadraticData(num_clients=2, dim=4)
    data.curvature = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 2.0, 0.0, 2.0]])
    data.centre = torch.tensor([[4.0, 0.0, 0.0, 8.0], [0.0, 2.0, 0.0, 4.0]])
    options = {"data": data, "module": Layers(), "local_steps": 1}
    flss, points = FLSS(1, rank=1, sample_every=None, scope=scope), Points()
    trainer, _ = train_quadratic([flss, points], tmp_path, max_rounds=3, **options)
    close([points.found[1].tolist()], [last])
    assert trainer.ledger.totals["up"] == 2 * 64 * (4 + 2 * numbers)
    assert trainer.ledger.down_bits["model"] == 2 * 64 * numbers


def test_layers_are_submodules() -> None:
    layout = ParameterLayout.of_parameters(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 4)))
    assert layer_sizes(layout) == [8, 12]
    shared = torch.arange(20) < 10
    assert layer_sizes(layout, shared) == [8, 2]
    assert layer_sizes(layout, ~layout.select("0.*")) == [12]


def test_random_directions(tmp_path: Path) -> None:
    """Drawn after warm-up and after sampled rounds; x moves by ``P^T P mean delta``. A client needs x alone.

    L = 2, s = 2, D = 832: rounds 3, 5 are projected. Round 3: both took part in round 2, D. Round 4: client 0 lacks
    round 3, R numbers, client 2 all. Round 5: both lack round 4, D. Round 6: client 0 lacks R numbers.
    """
    schedule = FixedParticipation([[0, 1], [0, 1], [0, 1], [0, 2], [0, 2], [0]])
    watch, flss = Watch(), FLSS(warmup_rounds=2, rank=3, sample_every=2, subspace="random")
    found = {}
    for rounds in (2, 3, 4, 6):
        watch.up, watch.down, watch.outside = [], [], []
        found[rounds] = train([flss, watch], tmp_path, max_rounds=rounds, participation=schedule)
        drawn = 2 * (rounds // 2)
        assert torch.equal(flss.basis.rows, orthonormal_rows(3, 832, generator(0, "flss", drawn)))
    dim = 832
    assert watch.up == [2 * dim, 2 * dim, 2 * 3, 2 * dim, 2 * 3, dim]
    assert watch.down == [2 * dim, 2 * dim, 2 * dim, dim + 3, 2 * dim, 3]
    assert [outside < 1e-13 for outside in watch.outside] == [False, False, True, False, True, False]
    # The same round without projection: x moves by its projection.
    free = train([], tmp_path, max_rounds=3, participation=schedule).server.vector - found[2].server.vector
    rows = orthonormal_rows(3, dim, generator(0, "flss", 2))
    moved = found[3].server.vector - found[2].server.vector
    torch.testing.assert_close(moved, projector(rows) @ free, rtol=0, atol=1e-14)


def test_controls_in_a_subspace_by_hand(tmp_path: Path) -> None:
    """SCAFFOLD + FLSS, L = 1, R = 1: controls are gradients at x, whatever is projected, and travel whole.

    1. (2, 0) and (0, 2): x = (1, 1), c_1 = (-4, 0), c_2 = (0, -4), c = (-2, -2).
    2. Gradients (-3, 1) and (0, -2), corrected (-1, -1) and (-2, 0): deltas (.5, .5), (1, 0), mean (.75, .25),
       projected (.5, .5): x = (1.5, 1.5). c_1 = (-3, 1), c_2 = (0, -2), c = (-1.5, -.5).
    3. Gradients (-2.5, 1.5) and (0, -1), corrected (-1, 0) and (-1.5, .5): mean (.625, -.125), projected (.25, .25).

    With the rate doubled in projected rounds x moves twice as far: (2, 2); the controls of round 2 are the same.
    """
    stack = [Scaffold(), FLSS(1, rank=1, sample_every=None)]
    path, trainer = path_of(stack, tmp_path, 3)
    close(path, [[1.0, 1.0], [1.5, 1.5], [1.75, 1.75]])
    assert trainer.ledger.totals["up"] == 2 * 64 * (2 + 2 + 3 + 3)
    for engine in ("sequential", "vectorized"):
        stack = [Scaffold(), FLSS(1, rank=1, sample_every=None, rate_scale=2.0)]
        trainer, _ = train_quadratic(
            stack, tmp_path, data=two_clients(), module=Quadratic(2, lr=0.5), max_rounds=2, local_steps=1, engine=engine
        )
        close([trainer.server.vector.tolist()], [[2.0, 2.0]])
        close(trainer.store.gather("scaffold/control", torch.arange(2)).tolist(), [[-3.0, 1.0], [0.0, -2.0]])


def test_a_scaled_rate_is_not_a_scaled_update(tmp_path: Path) -> None:
    """One client on ``2 (y - 1)^2 / 2`` and ``y^2 / 2``, L = 1, R = 1, two steps of 1/4; from (0, 4).

    Round 1: factors (1 - 1/2)^2 and (1 - 1/4)^2: (.75, -1.75) to (.75, 2.25). Round 2 with twice the rate: factors 0
    and 1/4: (.25, -1.6875); with twice the update, 2 (.1875, -.984375).
    """
    data = QuadraticData(num_clients=1, dim=2)
    data.curvature, data.centre = torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    p = torch.tensor([0.75, -1.75], dtype=torch.float64)
    for options, delta in (({"rate_scale": 2.0}, (0.25, -1.6875)), ({"update_scale": 2.0}, (0.375, -1.96875))):
        module = Quadratic(2, lr=0.25)
        module.point.data = torch.tensor([0.0, 4.0])
        flss = FLSS(1, rank=1, sample_every=None, **options)
        trainer, _ = train_quadratic([flss], tmp_path, data=data, module=module, max_rounds=2, local_steps=2)
        moved = p * (p @ torch.tensor(delta, dtype=torch.float64)) / p.square().sum()
        expected = torch.tensor([0.75, 2.25], dtype=torch.float64) + moved
        torch.testing.assert_close(trainer.server.vector, expected, rtol=0, atol=1e-14)


def test_server_momentum_by_hand(tmp_path: Path) -> None:
    """Momentum 1/2, L = 1, R = 1, s = 2: the basis follows the server's moves, momentum and all.

    1. (1, 1), x = (1, 1). 2. Projected mean (.5, .5), velocity (1, 1): x = (2, 2). 3. Mean (.5, -.5), velocity (1, 0):
    x = (3, 2); P is the direction of ``(1, 1) / 4`` and (1, 0) together, v. 4. Deltas (.5, -1) and (0, 0), mean
    (.25, -.5): velocity (.5, 0) + v v^T (.25, -.5).
    """

    def sgd(params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=1.0, momentum=0.5)

    flss, points = FLSS(1, rank=1, sample_every=2, attenuation=0.25), Points()
    options = {"data": two_clients(), "module": Quadratic(2, lr=0.5), "local_steps": 1, "server_optimizer": sgd}
    train_quadratic([flss, points], tmp_path, max_rounds=4, **options)
    v = torch.linalg.svd(torch.tensor([[0.25, 0.25], [1.0, 0.0]], dtype=torch.float64)).Vh[0]
    last = torch.tensor([3.5, 2.0], dtype=torch.float64) + v * (v @ torch.tensor([0.25, -0.5], dtype=torch.float64))
    close([x.tolist() for x in points.found], [[1.0, 1.0], [2.0, 2.0], [3.0, 2.0], last.tolist()])


class Watch(Bystander):
    """What a round sends, and how far x leaves the span of the basis of the round, as a share."""

    def __init__(self) -> None:
        self.up: list[int] = []
        self.down: list[int] = []
        self.outside: list[float] = []

    def on_round_start(self, round: Any) -> None:
        self.basis = next(c for c in self.run.callbacks if isinstance(c, FLSS)).basis.rows.clone()

    def on_server_step(self, round: Any) -> None:
        moved = (self.run.server.vector - round.server)[: self.basis.shape[1]]
        self.outside.append(float((moved - moved @ projector(self.basis)).norm() / moved.norm()))

    def on_round_end(self, round: Any) -> None:
        self.up.append(self.run.ledger.up_bits["update"] // 64)
        self.down.append(self.run.ledger.down_bits["model"] // 64)


@pytest.mark.parametrize(
    ("sample_every", "full"), [(3, [1, 2, 3, 6, 9]), (2, [1, 2, 3, 5, 7, 9]), (None, [1, 2, 3]), (0, [1, 2, 3])]
)
def test_which_rounds_are_full_and_the_span_of_the_others(
    sample_every: int | None, full: list[int], tmp_path: Path
) -> None:
    """L = 3: the first sampled round is L + s."""
    watch = Watch()
    train([FLSS(warmup_rounds=3, rank=2, sample_every=sample_every), watch], tmp_path, max_rounds=9)
    assert [number for number, up in enumerate(watch.up, 1) if up == 5 * 832] == full
    assert [number for number, up in enumerate(watch.up, 1) if up == 5 * 2] == sorted({*range(1, 10)} - {*full})
    for number, outside in enumerate(watch.outside, 1):
        assert outside > 1e-2 if number in full else outside < 1e-13


def test_more_moves_than_ranks_are_truncated_and_fewer_are_all_kept(tmp_path: Path) -> None:
    for warmup_rounds, rank in ((2, 2), (4, 3), (6, 3)):
        flss = FLSS(warmup_rounds, rank=3, sample_every=None)
        train([flss], tmp_path, max_rounds=warmup_rounds)
        assert flss.basis.rank == rank


def test_without_moves_there_is_no_basis_and_every_round_is_full(tmp_path: Path) -> None:
    data = two_clients()
    data.centre.zero_()
    watch = Watch()
    train_quadratic([FLSS(1, rank=1, sample_every=2), watch], tmp_path, data=data, module=Quadratic(2), max_rounds=5)
    assert watch.up == [4] * 5


@pytest.mark.parametrize(("rank", "same"), [(4, True), (2, False)])
def test_a_streamed_warm_up_is_the_batch_one_unless_it_is_truncated(rank: int, same: bool, tmp_path: Path) -> None:
    """Lambda belongs to the rounds after warm-up."""
    found = []
    for warmup in ("batch", "stream"):
        flss = FLSS(warmup_rounds=4, rank=rank, sample_every=2, attenuation=0.5, warmup=warmup)
        train([flss], tmp_path, max_rounds=6)
        found.append(flss.basis.singular_values)
    assert torch.allclose(found[0], found[1], rtol=0, atol=1e-10) is same


@pytest.mark.parametrize(("warmup_rounds", "same_as"), [(4, "stream"), (2, "batch")])
def test_a_warm_up_of_bounded_memory(warmup_rounds: int, same_as: Any, tmp_path: Path) -> None:
    """R = 2: never more than R moves are kept."""
    found = {}
    for warmup in ("auto", "batch", "stream"):
        flss, most = FLSS(warmup_rounds, rank=2, sample_every=None, warmup=warmup), Most()
        train([flss, most], tmp_path, max_rounds=warmup_rounds)
        found[warmup] = flss.basis.rows, most.kept
    assert torch.equal(found["auto"][0], found[same_as][0])
    assert found["auto"][1] == {"stream": 0, "batch": 1}[same_as]
    assert found["batch"][1] == warmup_rounds - 1


class Most(Bystander):
    """How many moves a warm-up has kept at the end of a round, at most."""

    kept = 0

    def on_round_end(self, round: Any) -> None:
        self.kept = max(self.kept, len(self.run.callbacks[0]._moves))


def test_projected_gradients(tmp_path: Path) -> None:
    """With plain SGD the update is in the span, and coefficients suffice; weight decay takes it out, as x is not."""
    found = {}
    for project in ("updates", "gradients", "both"):
        for weight_decay in (0.0, 0.3):
            watch, module = Watch(), Quadratic(weight_decay=weight_decay)
            flss = FLSS(warmup_rounds=4, rank=2, sample_every=None, project=project)
            trainer, _ = train_quadratic([flss, watch], tmp_path, module=module, max_rounds=6)
            found[project, weight_decay] = trainer.server.vector, watch.outside[-1], watch.up[-1]
    torch.testing.assert_close(found["gradients", 0.0][0], found["both", 0.0][0], rtol=0, atol=1e-14)
    assert (found["updates", 0.0][0] - found["both", 0.0][0]).norm() > 1e-4
    assert [found[p, 0.3][1] > 1e-3 for p in ("updates", "gradients", "both")] == [False, True, False]
    assert [found[p, 0.3][2] for p in ("updates", "gradients", "both")] == [5 * 2, 5 * 12, 5 * 2]


def test_personal_parameters_are_not_followed(tmp_path: Path) -> None:
    """The shared part is the first 64 * 12 + 12 numbers of the MLP."""
    watch, flss = Watch(), FLSS(warmup_rounds=2, rank=2, sample_every=2)
    train([PersonalParameters(["*.head.*"]), flss, watch], tmp_path, max_rounds=5)
    assert flss.basis.dim == 780
    assert watch.up == [5 * 780, 5 * 780, 5 * 2, 5 * 780, 5 * 2]
    assert max(watch.outside[2], watch.outside[4]) < 1e-13
    assert min(watch.outside[3], watch.outside[1]) > 1e-2


class Kept(Bystander):
    """Rows of error feedback before and after each round."""

    def __init__(self) -> None:
        self.changed: list[bool] = []

    def on_round_start(self, round: Any) -> None:
        self.before = self.rows(round)

    def on_round_end(self, round: Any) -> None:
        self.changed.append(not torch.equal(self.before, self.rows(round)))

    def rows(self, round: Any) -> Tensor:
        store = self.run.store
        return store.gather("sign/error", torch.arange(8)) if "sign/error" in store.slots else torch.empty(0)


def test_projected_rounds_leave_error_feedback_alone(tmp_path: Path) -> None:
    kept, watch = Kept(), Watch()
    train([FLSS(warmup_rounds=2, rank=2, sample_every=2), Sign(), kept, watch], tmp_path, max_rounds=5)
    assert kept.changed == [True, True, False, True, False]
    assert watch.up == [5 * (832 + 64) // 64] * 2 + [5 * 2, 5 * (832 + 64) // 64, 5 * 2]


@pytest.mark.parametrize("warmup", ["batch", "stream"])
def test_resumed_in_the_middle_of_warm_up(warmup: str, tmp_path: Path) -> None:
    def run(folder: str, **options: Any) -> Any:
        options |= {"max_rounds": 6, "checkpoint": Checkpointing(every_n_rounds=2, keep_all=True)}
        return train([FLSS(warmup_rounds=3, rank=2, sample_every=2, warmup=warmup)], tmp_path / folder, **options)

    whole = run("whole")
    resumed = run("resumed", ckpt_path=str(Path(whole.log_dir) / "checkpoints" / "round_000002.ckpt"))
    assert torch.equal(resumed.server.vector, whole.server.vector)
    assert torch.equal(resumed.stack[0].basis.rows, whole.stack[0].basis.rows)
    assert resumed.ledger.totals == whole.ledger.totals


def test_bytes_by_hand(tmp_path: Path) -> None:
    """L = 2, R = 2, s = 2, D = 832: rounds 3, 5, 7, 9 are projected. A client needs x_1, x_2, x_3 to make P.

    Round 3: client 0 has x_1 and x_2, D; client 1 has x_1, 2D. Round 4: client 2 has x_2, 2D and the 2 numbers of round
    3; client 3 is new, 3D + 2, as much as x, P and Sigma. Round 5: client 0 was here in round 3: rounds 3 and 4, 2 + D.
    Round 6: client 0, round 5: 2; client 3, rounds 4 and 5: D + 2. Round 7: client 3, round 6: D. Round 8: client 0,
    rounds 6 and 7: D + 2. Round 9: client 1 would need 3D + 6 for rounds 3 to 8; it and the new client 4 take x, P and
    Sigma.
    """
    watch, dim = Watch(), 832
    schedule = FixedParticipation([[0, 1], [0, 2], [0, 1], [2, 3], [0], [0, 3], [3], [0], [1, 4]])
    flss = FLSS(warmup_rounds=2, rank=2, sample_every=2)
    trainer = train([flss, watch], tmp_path, max_rounds=9, participation=schedule)
    after = [3 * dim, 5 * dim + 4, dim + 2, dim + 4, dim, dim + 2, 2 * (3 * dim + 2)]
    assert watch.down == [2 * dim, 2 * dim, *after]
    assert watch.up == [2 * dim, 2 * dim, 4, 2 * dim, 2, 2 * dim, 2, dim, 4]
    assert trainer.summary.last("flss/paper_upload")[0] == 3 * dim + 4 * 2


def test_server_momentum_cannot_be_followed_from_coefficients(tmp_path: Path) -> None:
    watch = Watch()

    def sgd(params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=1.0, momentum=0.9)

    flss = FLSS(warmup_rounds=2, rank=2, sample_every=None)
    train_quadratic([flss, watch], tmp_path, max_rounds=5, server_optimizer=sgd)
    assert watch.down == [5 * 12] * 5
    assert watch.up == [5 * 12] * 2 + [5 * 2] * 3


class FirstHalf(FederatedCallback):
    """Sends half of an update."""

    def encode(self, cohort: Any, payload: Payload) -> Payload:
        return Payload.dense(payload.values[:, : payload.values.shape[1] // 2])


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`attenuation=1.5` of FLSS must be greater than 0 and at most 1"):
        FLSS(attenuation=1.5)
    with pytest.raises(ValueError, match=r"FLSS follows the server .* but SSF lets clients send coordinates"):
        train([FLSS(), SSF(LayerwiseSubspace(0.3))], tmp_path)
    with pytest.raises(ValueError, match=r"`attenuation=0.5` of FLSS has no meaning with `subspace=random`"):
        FLSS(attenuation=0.5, subspace="random")
    with pytest.raises(ValueError, match=r"FLSS and FLSSVRG have no meaning together: clients of FLSSVRG add"):
        train([FLSS(), FLSSVRG(20, 30, epoch_rounds=2)], tmp_path)
    with pytest.raises(ValueError, match=r"Scaffold stands behind FLSS .*Put Scaffold before FLSS"):
        train([FLSS(project="gradients"), Scaffold()], tmp_path)
    with pytest.raises(ValueError, match=r"FLSS follows 832 numbers .* the codecs before it leave 416 of an update"):
        train([FirstHalf(), FLSS()], tmp_path)
