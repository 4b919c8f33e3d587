"""FedCM: the momentum in the scale of a gradient, steps followed by hand, and what it does not go with."""

from pathlib import Path
from typing import Any

import pytest
import torch
from quadratics import Linear, Spy, quadratic_data
from torch import Tensor
from worlds import Bystander, Quadratic, QuadraticData, mlp, train, train_quadratic

from lfl.aggregation import MeanAggregator, NormalizedReaggregation
from lfl.callbacks import SSF, ClientMomentum, FederatedCallback, PersonalParameters, Proximal, RandomK, TopK
from lfl.participation import FixedParticipation
from lfl.subspace import IdentitySubspace

ENGINES = ["sequential", "vectorized"]
ONE_CLIENT = quadratic_data([[1.0]], [[-4.0]])
TWO_STEPS = {"max_rounds": 2, "local_steps": 2}


def one_client(callbacks: list[FederatedCallback], folder: Path, **options: Any):
    settings = {**TWO_STEPS, "module": Quadratic(dim=1), "data": ONE_CLIENT, **options}
    return train_quadratic(callbacks, folder, **settings)[0]


def test_two_rounds_by_hand(tmp_path: Path) -> None:
    """One dimension, A = 1, b = -4, alpha = 0.5, eta = 0.1, K = 2; g = y + 4.

    Round 1, m = 0: v = 2, y = -0.2; v = 1.9, y = -0.39; m = 0.39 / 0.2 = 1.95.
    Round 2: v = 0.5 * 3.61 + 0.975 = 2.78, y = -0.668; v = 0.5 * 3.332 + 0.975 = 2.641, y = -0.9321;
    m = (0.9321 - 0.39) / 0.2 = 2.7105. With one client m from the aggregate is the same.
    """
    for source in ("updates", "aggregate"):
        trainer = one_client([ClientMomentum(0.5, source)], tmp_path)
        assert trainer.server.vector.tolist() == pytest.approx([-0.9321], abs=1e-14)
        assert trainer.stack[0].momentum.tolist() == pytest.approx([2.7105], abs=1e-12)


def test_with_a_proximal_term_by_hand(tmp_path: Path) -> None:
    """As above with mu = 1 inside the mix: g = y + 4 + (y - x).

    Round 1: v = 2, y = -0.2; v = 0.5 * (3.8 - 0.2) = 1.8, y = -0.38; m = 1.9.
    Round 2: v = 0.5 * 3.62 + 0.95 = 2.76, y = -0.656; v = 0.5 * (3.344 - 0.276) + 0.95 = 2.484, y = -0.9044;
    m = (0.9044 - 0.38) / 0.2 = 2.622.
    """
    trainer = one_client([Proximal(1.0), ClientMomentum(0.5)], tmp_path)
    assert trainer.server.vector.tolist() == pytest.approx([-0.9044], abs=1e-14)
    assert trainer.stack[1].momentum.tolist() == pytest.approx([2.622], abs=1e-12)


@pytest.mark.parametrize(("inside", "expected"), [(False, -0.48), (True, -0.485)])
def test_weight_decay_inside_and_outside_the_mix_by_hand(inside: bool, expected: float, tmp_path: Path) -> None:
    """K = 1, wd = 0.5. Round 1: x = 0, v = 2, x = -0.2, m = 2. Round 2: g = 3.8, wd y = -0.1.

    Outside: v = 1.9 + 1 - 0.1 = 2.8. Inside: v = 1.9 - 0.05 + 1 = 2.85.
    """
    module = Quadratic(dim=1, weight_decay=0.5)
    trainer = one_client([ClientMomentum(0.5, decay_inside=inside)], tmp_path, local_steps=1, module=module)
    assert trainer.server.vector.tolist() == pytest.approx([expected], abs=1e-14)


@pytest.mark.filterwarnings("ignore:`aggregator.weighting=examples` of MeanAggregator is kept")
@pytest.mark.parametrize("source", ["updates", "aggregate"])
def test_clients_with_unequal_steps_and_weights(source: str, tmp_path: Path) -> None:
    """``-sum w_i delta_i / (K_i eta)``, or minus the aggregate over the weighted mean of K_i eta."""

    class Kept(FederatedCallback):
        def __init__(self) -> None:
            self.rows: list[Tensor] = []

        def on_cohort_end(self, cohort) -> None:
            self.rows.append(torch.cat([cohort.num_examples[:, None], cohort.num_steps[:, None], cohort.delta], dim=1))

    kept, momentum = Kept(), ClientMomentum(0.5, source)
    train([kept, momentum], tmp_path, mlp(), max_rounds=1, aggregator=MeanAggregator("examples"))
    rows = torch.cat(kept.rows)
    weights, steps, delta = rows[:, 0] / rows[:, 0].sum(), rows[:, 1], rows[:, 2:]
    assert len(steps.unique()) > 2
    if source == "updates":
        expected = -(weights / (0.1 * steps)) @ delta
    else:
        expected = -(weights @ delta) / (0.1 * weights @ steps)
    torch.testing.assert_close(momentum.momentum, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("lr", [0.1, 0.003])
def test_a_constant_gradient_is_approached_by_a_constant_factor(lr: float, tmp_path: Path) -> None:
    """m = (1 - (1 - alpha)^t) g after t rounds, whatever the learning rate and the number of steps."""
    module = Linear(lr=lr)
    trainer, data = train_quadratic([ClientMomentum(0.3)], tmp_path, module=module, max_rounds=5)
    mean = data.centre.mean(dim=0)
    torch.testing.assert_close(trainer.stack[0].momentum, (1 - 0.7**5) * mean, rtol=0, atol=1e-13)


def test_local_momentum_is_divided_out(tmp_path: Path) -> None:
    """Under heavy ball the movement of a constant gradient is not K eta g; m still is (1 - (1 - alpha)^t) g."""
    trainer, data = train_quadratic([ClientMomentum(0.3)], tmp_path, module=Linear(momentum=0.9), max_rounds=2)
    torch.testing.assert_close(trainer.stack[0].momentum, 0.51 * data.centre.mean(dim=0), rtol=0, atol=1e-13)


@pytest.mark.parametrize("aggregator", [MeanAggregator("uniform"), MeanAggregator(), NormalizedReaggregation()])
@pytest.mark.parametrize("source", ["updates", "aggregate"])
def test_never_longer_than_the_longest_gradient(source: str, aggregator: Any, tmp_path: Path) -> None:
    class Bound(Bystander):
        def on_server_step(self, round) -> None:
            spy, momentum = self.run.callbacks[:2]
            longest = max(float(g.norm(dim=1).max()) for g in spy.gradients)
            assert 0 < momentum.momentum.norm() <= longest

    stack = [Spy(), ClientMomentum(0.2, source), Bound()]
    train(stack, tmp_path, mlp(), max_rounds=6, aggregator=aggregator, engine="vectorized")


def recursion(rounds: int, scaled: bool, normalized: bool, alpha: float = 0.1, eta: float = 0.1, K: int = 15) -> Tensor:
    """FedCM on the quadratics, with m in the scale of a gradient or, as printed, of a movement; |m| of each round."""
    data, x = QuadraticData(), torch.zeros(12, dtype=torch.float64)
    m, norms = torch.zeros_like(x), []
    for _ in range(rounds):
        # K steps y <- y - eta (alpha A (y - b) + (1 - alpha) m) in closed form.
        fixed = data.centre - (1 - alpha) / alpha * m / data.curvature
        delta = (1 - (1 - eta * alpha * data.curvature) ** K) * (fixed - x)
        u = delta.mean(dim=0)
        if normalized:
            u = u / u.norm() * delta.norm(dim=1).mean()
        x, m = x + u, -u / (K * eta) if scaled else -u
        norms.append(m.norm())
    return torch.stack(norms), x


@pytest.mark.parametrize("normalized", [False, True])
def test_in_the_scale_of_a_gradient_it_is_stable_and_in_that_of_a_movement_it_diverges(normalized: bool) -> None:
    stable, _ = recursion(2000, scaled=True, normalized=normalized)
    assert stable.max() < 6
    diverging, _ = recursion(300, scaled=False, normalized=normalized)
    assert diverging.max() > 1e12


@pytest.mark.parametrize("normalized", [False, True])
def test_ours_is_the_scaled_recursion(normalized: bool, tmp_path: Path) -> None:
    norms, x = recursion(40, scaled=True, normalized=normalized)
    aggregator = NormalizedReaggregation() if normalized else MeanAggregator("uniform")
    stack = [ClientMomentum(0.1, "aggregate" if normalized else "updates")]
    options = {"max_rounds": 40, "local_steps": 15, "aggregator": aggregator, "engine": "vectorized"}
    trainer, _ = train_quadratic(stack, tmp_path, **options)
    torch.testing.assert_close(trainer.server.vector, x, rtol=0, atol=1e-10)
    torch.testing.assert_close(trainer.stack[0].momentum.norm(), norms[-1], rtol=0, atol=1e-10)


def test_it_travels_with_the_model(tmp_path: Path) -> None:
    two = FixedParticipation([[0, 1]] * 3)
    trainer = train([ClientMomentum()], tmp_path, mlp(), participation=two)
    assert trainer.ledger.down_bits == {"model": 2 * 832 * 64, "momentum": 2 * 832 * 64}
    assert trainer.ledger.up_bits == {"update": 2 * 832 * 64}
    trainer = train([ClientMomentum(1.0)], tmp_path, mlp(), participation=two)
    assert trainer.ledger.down_bits == {"model": 2 * 832 * 64}


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ([ClientMomentum(), SSF(IdentitySubspace())], "ClientMomentum cannot be used with SSF"),
        ([SSF(IdentitySubspace()), ClientMomentum()], "ClientMomentum cannot be used with SSF"),
        ([ClientMomentum(), TopK(0.1)], "which TopK does not send: use `momentum_from=aggregate`"),
        ([RandomK(0.1), ClientMomentum()], "which RandomK does not send: use `momentum_from=aggregate`"),
        ([PersonalParameters(["*.head.*"]), ClientMomentum()], "PersonalParameters and ClientMomentum"),
    ],
)
def test_stacks_without_a_meaning_are_refused(stack: list[FederatedCallback], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(stack, tmp_path)


@pytest.mark.parametrize("other", [TopK(0.5), SSF(IdentitySubspace())])
def test_what_goes_with_it(other: FederatedCallback, tmp_path: Path) -> None:
    train([ClientMomentum(1.0), other], tmp_path, max_rounds=1)
    if isinstance(other, TopK):
        trainer = train([ClientMomentum(0.5, "aggregate"), other], tmp_path, max_rounds=2)
        assert trainer.stack[0].momentum.norm() > 0


@pytest.mark.parametrize(("option", "value"), [("alpha", 0.0), ("alpha", 1.1), ("momentum_from", "server")])
def test_settings_that_mean_nothing(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"`{option}={value}`"):
        ClientMomentum(**{option: value})


def test_needs_sgd(tmp_path: Path) -> None:
    module = mlp()
    module.configure_optimizers = lambda: torch.optim.Adam(module.parameters())
    with pytest.raises(ValueError, match="needs SGD"):
        train([ClientMomentum()], tmp_path, module)
