"""Clipping, noise and what they cost."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dp_accounting as dp
import pytest
import torch
from contract.test_stacks import corners
from dp_accounting.rdp import RdpAccountant
from torch import Tensor
from worlds import Quadratic, QuadraticData, Rounds, batch_norm, even_data, mlp, train, train_quadratic

from lfl.aggregation import CoordinateMedian, MeanAggregator
from lfl.callbacks import (
    FLSS,
    SSF,
    ClientMomentum,
    Diagnostics,
    DifferentialPrivacy,
    FederatedCallback,
    FedNova,
    PersonalParameters,
    Proximal,
    Scaffold,
    Sign,
    TopK,
)
from lfl.callbacks.privacy import Accounting, Sampling
from lfl.participation import (
    FixedParticipation,
    FullParticipation,
    HeldOutParticipation,
    PoissonParticipation,
    UniformParticipation,
)
from lfl.round import Cohort, Round
from lfl.trainer import FederatedTrainer

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorized"])
RELATION = dp.NeighboringRelation


def still(dim: int, num_clients: int = 4) -> dict[str, Any]:
    """A problem in which clients do not move: what the server makes of it is noise."""
    return {"module": Quadratic(dim, lr=0.0), "data": QuadraticData(num_clients, dim), "local_steps": 1}


@ENGINES
def test_updates_are_shortened_and_summed_over_a_fixed_number(engine: str, tmp_path: Path) -> None:
    """delta = (0.5, 0), (0, 0.5) after a step of 0.1, shortened to 0.3; then from x = (0.15, 0.15) in the same way.

    Round 2: delta = 0.1 ((5, 0) - x) = (0.485, -0.015), of norm n = sqrt(0.485^2 + 0.015^2), so times 0.3 / n; their
    mean is 0.3 / n (0.235, 0.235).
    """
    stack = [DifferentialPrivacy(0.0, clip=0.3)]
    options = {"data": corners(), "module": Quadratic(2), "local_steps": 1, "max_rounds": 2, "engine": engine}
    trainer, _ = train_quadratic(stack, tmp_path, **options)
    expected = 0.15 + 0.3 / math.hypot(0.485, 0.015) * 0.235
    assert trainer.server.vector.tolist() == pytest.approx([expected] * 2, abs=1e-15)


def test_who_takes_part_is_not_told_by_the_denominator(tmp_path: Path) -> None:
    """q N = 2.5 of five clients, however many there are; and of two of five, each counts a half."""
    for participation, denominator in ((PoissonParticipation(0.5), 2.5), (UniformParticipation(2), 2.0)):
        kept = Rounds()
        options = {"participation": participation, "max_rounds": 1, "local_steps": 1}
        trainer, data = train_quadratic([DifferentialPrivacy(0.0, clip=1e6), kept], tmp_path, **options)
        ids = kept.kept[0].clients
        moved = 0.1 * (data.curvature * data.centre)[ids].sum(dim=0)
        torch.testing.assert_close(trainer.server.vector, moved / denominator, rtol=0, atol=1e-15)


def test_without_noise_and_with_a_clip_that_nobody_reaches_it_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    options = {"participation": FullParticipation(), "precision": "32-true"}
    vectors = [train(stack, tmp_path, **options).server.vector for stack in ([], [DifferentialPrivacy(0.0, clip=1e9)])]
    assert torch.equal(*vectors)


@pytest.mark.parametrize("num_clients", [4, 40])
def test_noise_has_the_variance_that_was_asked_for(num_clients: int, tmp_path: Path) -> None:
    """x moves by N(0, (sigma S / m)^2) in every round: of 20,000 numbers, 5 standard errors."""
    kept, dim = Rounds(), 20_000
    stack = [DifferentialPrivacy(0.8, clip=0.5), kept]
    train_quadratic(stack, tmp_path, max_rounds=3, **still(dim, num_clients))
    deviation = 0.8 * 0.5 / num_clients
    drawn = [round.update / deviation for round in kept.kept if round.update is not None]
    assert len(drawn) == 3
    for noise in drawn:
        assert abs(float(noise.mean())) < 5 / math.sqrt(dim)
        assert abs(float(noise.var()) - 1) < 5 * math.sqrt(2 / dim)
    assert abs(float(torch.corrcoef(torch.stack(drawn))[0, 1])) < 5 / math.sqrt(dim)


def test_noise_is_that_of_the_seed_and_the_round(tmp_path: Path) -> None:
    def vector(seed: int) -> Tensor:
        stack: list[FederatedCallback] = [DifferentialPrivacy()]
        return train_quadratic(stack, tmp_path, max_rounds=2, seed=seed, **still(9))[0].server.vector

    assert torch.equal(vector(1), vector(1))
    assert not torch.equal(vector(1), vector(2))


def test_a_round_without_clients_is_noised_too(tmp_path: Path) -> None:
    participation = PoissonParticipation(0.01)
    assert not len(participation.select(1, 4, 0))
    options = {"participation": participation, "max_rounds": 1, **still(5000)}
    trainer, _ = train_quadratic([DifferentialPrivacy(0.5, clip=2.0)], tmp_path, **options)
    deviation = 0.5 * 2.0 / (0.01 * 4)
    assert float(trainer.server.vector.std() / deviation) == pytest.approx(1.0, abs=0.05)


def test_personal_parameters_stay_what_they_are(tmp_path: Path) -> None:
    stack = [PersonalParameters(["*.head.*"]), DifferentialPrivacy()]
    trainer = train(stack, tmp_path, participation=UniformParticipation(5))
    personal = trainer.layout.select(["*.head.*"])
    before = torch.cat([p.detach().flatten() for p in mlp().double().parameters()])
    assert torch.equal(trainer.server.vector[personal], before[personal])
    assert bool((trainer.server.vector != before)[~personal].all())


# -- epsilon ----------------------------------------------------------------------------------------------------------


def epsilon(event: Any, relation: Any, rounds: int, delta: float) -> float:
    return float(RdpAccountant(neighboring_relation=relation).compose(event, rounds).get_epsilon(delta))


@pytest.mark.parametrize(
    ("participation", "event", "relation"),
    [
        (PoissonParticipation(0.3), dp.PoissonSampledDpEvent(0.3, dp.GaussianDpEvent(1.5)), RELATION.ADD_OR_REMOVE_ONE),
        (
            UniformParticipation(2),
            dp.SampledWithoutReplacementDpEvent(5, 2, dp.GaussianDpEvent(0.75)),  # replaced: 2 S
            RELATION.REPLACE_ONE,
        ),
        (UniformParticipation(5), dp.GaussianDpEvent(1.5), RELATION.ADD_OR_REMOVE_ONE),
        (FullParticipation(), dp.GaussianDpEvent(1.5), RELATION.ADD_OR_REMOVE_ONE),
        # Nothing is gained from draws that are not made in every round, or from none.
        (UniformParticipation(2, rounds_per_draw=2), dp.GaussianDpEvent(1.5), RELATION.ADD_OR_REMOVE_ONE),
        (FixedParticipation([[0, 1], [1, 2]]), dp.GaussianDpEvent(1.5), RELATION.ADD_OR_REMOVE_ONE),
    ],
    ids=["poisson", "without replacement", "all of all", "full", "seldom drawn", "fixed"],
)
def test_epsilon_is_the_accountants(participation: Any, event: Any, relation: Any, tmp_path: Path) -> None:
    kept = Rounds()
    stack = [DifferentialPrivacy(1.5, delta=1e-3), kept]
    trainer, _ = train_quadratic(stack, tmp_path, participation=participation, max_rounds=3, local_steps=1)
    for round in kept.kept:
        assert round.metrics["privacy/epsilon"] == pytest.approx(epsilon(event, relation, round.number, 1e-3))
    assert trainer.summary.last("privacy/epsilon")[0] == kept.kept[-1].metrics["privacy/epsilon"]


def test_a_gaussian_mechanism_costs_what_theory_says(tmp_path: Path) -> None:
    """Divergence alpha / (2 sigma^2): epsilon <= 1 / (2 s^2) + sqrt(2 log(1/delta)) / s with s = sigma / sqrt(T)."""
    trainer, _ = train_quadratic([DifferentialPrivacy(10.0, delta=1e-4)], tmp_path, max_rounds=4, local_steps=1)
    scale = 10.0 / math.sqrt(4)
    bound = 1 / (2 * scale**2) + math.sqrt(2 * math.log(1e4)) / scale
    assert 0.6 * bound < trainer.summary.last("privacy/epsilon")[0] <= bound


def test_the_accountant_says_nothing_of_orders_that_it_leaves_out(caplog: pytest.LogCaptureFixture) -> None:
    event = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0))
    found = Accounting("a test").divergences(event, RELATION.ADD_OR_REMOVE_ONE)
    assert not caplog.records
    RdpAccountant().compose(event)
    assert "failed to converge" in caplog.text
    assert float(found.get_epsilon(1e-4)) == epsilon(event, RELATION.ADD_OR_REMOVE_ONE, 1, 1e-4)


def test_without_noise_there_is_no_epsilon(tmp_path: Path) -> None:
    trainer, _ = train_quadratic([DifferentialPrivacy(0.0)], tmp_path, max_rounds=1)
    assert "privacy/epsilon" not in trainer.callback_metrics


# -- a clip that follows the norms ------------------------------------------------------------------------------------


@ENGINES
@pytest.mark.parametrize(("clip", "below"), [(0.3, 0.0), (1.0, 1.0), (0.4999, 0.0)])
def test_the_clip_follows_the_quantile(clip: float, below: float, engine: str, tmp_path: Path) -> None:
    """Both norms are 0.5; S <- S exp(-0.2 (b - 0.7)). A bit more goes up from each client, and S goes down."""
    privacy = DifferentialPrivacy(0.0, clip=clip, quantile=0.7)
    options = {"data": corners(), "module": Quadratic(2), "local_steps": 1, "max_rounds": 1, "engine": engine}
    trainer, _ = train_quadratic([privacy], tmp_path, **options)
    assert privacy.current_clip == pytest.approx(clip * math.exp(-0.2 * (below - 0.7)), rel=1e-12)
    assert trainer.summary.last("privacy/clip")[0] == privacy.current_clip
    assert trainer.ledger.totals == {"up": 2 * (2 * 64 + 1), "down": 2 * (2 + 1) * 64}


def test_the_clip_finds_the_median_norm(tmp_path: Path) -> None:
    """Ten clients at the distances 1 to 10, whose first step of 1 goes all the way: half of the norms are below 5.5."""
    data = QuadraticData(10, 1)
    data.curvature, data.centre = torch.ones(10, 1).double(), torch.arange(1.0, 11.0)[:, None].double()
    privacy = DifferentialPrivacy(0.0, clip=0.1, quantile=0.5, clip_lr=1.0)
    still_server = {"server_optimizer": lambda p: torch.optim.SGD(p, lr=0.0)}
    options = {"data": data, "module": Quadratic(1, lr=1.0), "local_steps": 1, "max_rounds": 40, **still_server}
    train_quadratic([privacy], tmp_path, **options)
    assert 5 <= privacy.current_clip <= 6


def test_the_count_is_noised_and_the_updates_a_little_more(tmp_path: Path) -> None:
    """S exp(-eta_C (1/2 + (1 + noise) / 2 - gamma)): b_i - 1/2 = 1/2 of two clients; noise has deviation sigma_b."""
    privacy, dim = DifferentialPrivacy(1.0, clip=3.0, quantile=0.5, count_noise=0.8), 20_000
    kept = Rounds()
    options = {"max_rounds": 1, **still(dim, 2)}
    train_quadratic([privacy, kept], tmp_path, **options)
    of_updates = (1 - (2 * 0.8) ** -2) ** -0.5
    update = kept.kept[0].update
    assert update is not None
    assert float(update.std()) == pytest.approx(of_updates * 3.0 / 2, rel=0.03)
    noise = -2 * (math.log(privacy.current_clip / 3.0) / 0.2 + 0.5)
    assert noise != 0
    assert abs(noise) < 4 * 0.8
    together = dp.ComposedDpEvent([dp.GaussianDpEvent(of_updates), dp.GaussianDpEvent(2 * 0.8)])
    found = epsilon(dp.PoissonSampledDpEvent(0.1, together), RELATION.ADD_OR_REMOVE_ONE, 5, 1e-3)
    alone = epsilon(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0)), RELATION.ADD_OR_REMOVE_ONE, 5, 1e-3)
    assert found == pytest.approx(alone, rel=1e-9)


def test_the_count_has_as_much_noise_as_the_paper_gives_it_or_as_it_needs(tmp_path: Path) -> None:
    """m / 20 = 5 for m = 100; sigma where that is less."""
    for probability, expected in ((1.0, 5.0), (0.1, 2.0)):
        privacy = DifferentialPrivacy(2.0, quantile=0.5)
        participation = PoissonParticipation(probability)
        train_quadratic([privacy], tmp_path, participation=participation, max_rounds=1, **still(2, 100))
        assert privacy._count_noise == expected


# -- what is refused --------------------------------------------------------------------------------------------------


class Uploads(FederatedCallback):
    """Does not say that it sends more."""

    def on_cohort_end(self, cohort: Cohort) -> None:
        cohort.upload("norm", cohort.delta.norm(dim=1, keepdim=True))


class Follows(FederatedCallback):
    """Keeps the aggregate."""

    def on_aggregate(self, round: Round) -> None:
        self.last = round.update


STACKS: list[tuple[Callable[[], list[FederatedCallback]], str]] = [
    (lambda: [FedNova(), DifferentialPrivacy()], "FedNova and DifferentialPrivacy have no meaning .* send more than"),
    (lambda: [Scaffold(), DifferentialPrivacy()], "Scaffold and DifferentialPrivacy have no meaning .* send more than"),
    (lambda: [DifferentialPrivacy(), SSF()], "SSF and DifferentialPrivacy have no meaning together"),
    (
        lambda: [ClientMomentum(0.1, "aggregate"), DifferentialPrivacy()],
        "ClientMomentum and DifferentialPrivacy",
    ),
    (lambda: [FLSS(1, 2), DifferentialPrivacy()], "FLSS and DifferentialPrivacy have no meaning .* in some rounds"),
    (lambda: [DifferentialPrivacy(), TopK(0.1)], "TopK stands behind DifferentialPrivacy.*Put TopK before it"),
    (lambda: [DifferentialPrivacy(), Sign()], "Sign stands behind DifferentialPrivacy"),
    (lambda: [Follows(), DifferentialPrivacy()], "Follows stands before DifferentialPrivacy, and would see"),
    (lambda: [DifferentialPrivacy(), DifferentialPrivacy()], "`callbacks` has two DifferentialPrivacy"),
    (lambda: [Uploads(), DifferentialPrivacy()], "DifferentialPrivacy does not cover .* besides their updates: 'norm'"),
]


@pytest.mark.parametrize(("make", "message"), STACKS)
def test_stacks_that_are_not_covered_are_refused(make: Callable[[], Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(make(), tmp_path, participation=UniformParticipation(5))


def test_stacks_that_are_covered(tmp_path: Path) -> None:
    for stack in ([Proximal(0.1), TopK(0.1), DifferentialPrivacy(), Follows()], [Diagnostics(), DifferentialPrivacy()]):
        assert train(stack, tmp_path, max_rounds=1, participation=UniformParticipation(5)).current_round == 1


@pytest.mark.filterwarnings("ignore:.*weighting=examples")  # of a weighting that the stack is not stated for
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregator": MeanAggregator("examples")}, "use `MeanAggregator` with `weighting=uniform`, not `MeanAggreg"),
        ({"aggregator": CoordinateMedian()}, "not `CoordinateMedian` with `weighting=uniform`"),
        ({"participation": FixedParticipation([[0, 1], [2]])}, "needs PoissonParticipation, .* not FixedParticipation"),
    ],
)
def test_settings_that_are_not_accounted_for_are_refused(options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train([DifferentialPrivacy()], tmp_path, **{"participation": UniformParticipation(5), **options})


def test_buffers_that_travel_are_refused(tmp_path: Path) -> None:
    def fit(policy: str) -> FederatedTrainer:
        options = {"buffers": policy, "participation": FullParticipation(), "max_rounds": 1}
        return train([DifferentialPrivacy()], tmp_path, batch_norm(), even_data(), **options)

    with pytest.raises(ValueError, match=r"does not cover the model's buffers .* use GroupNorm, or `trainer\.buffers="):
        fit("average")
    assert fit("client").current_round == fit("server").current_round == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_multiplier": -1.0}, "`noise_multiplier=-1.0` of DifferentialPrivacy must be a number of at least 0"),
        ({"clip": 0.0}, "`clip=0.0` of DifferentialPrivacy must be a number greater than 0"),
        ({"delta": 0.0}, "`delta=0.0` of DifferentialPrivacy must be a number greater than 0"),
        ({"delta": 1.0}, "`delta=1.0` of DifferentialPrivacy must be less than 1"),
        ({"quantile": 1.0}, "`quantile=1.0` of DifferentialPrivacy must be greater than 0 and less than 1"),
        ({"quantile": 0.5, "count_noise": 0.5}, "`count_noise=0.5` of .* more than half of `noise_multiplier=1.0`"),
    ],
)
def test_values_that_cannot_be_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DifferentialPrivacy(**options)  # type: ignore[arg-type]


def test_the_extra_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'lfl\[privacy\]'"):
        train([DifferentialPrivacy()], tmp_path, participation=FullParticipation())


def test_clients_that_are_held_out_are_not_sampled_from(tmp_path: Path) -> None:
    participation = HeldOutParticipation(0.25, UniformParticipation(3))
    run = train([], tmp_path, max_rounds=0, participation=participation).run
    assert Sampling.of(run) == Sampling(6, None, 3, is_fresh=True)
