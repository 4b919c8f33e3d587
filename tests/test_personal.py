"""Personal parameters, phases of local work, the fastest clients, and the clients' own models on their own data."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import QuadraticData, mlp, ragged_data, train, train_quadratic
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lfl.callbacks import FLSSVRG, SSF, ClientEvaluation, PersonalParameters, Scaffold, TopK
from lfl.engine import LocalPhase
from lfl.participation import DoublingParticipation, FixedParticipation, FullParticipation, UniformParticipation
from lfl.system import ExponentialSpeeds, FixedTimes
from lfl.trainer import FederatedTrainer

HEAD, BODY = ["*.head.*"], ["backbone.features.*"]


def head_of(trainer: FederatedTrainer) -> Tensor:
    return trainer.layout.select(HEAD)


# -- reductions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_nothing_personal_is_fedavg_bit_for_bit(engine: str, tmp_path: Path) -> None:
    plain = train([], tmp_path, engine=engine)
    empty = train([PersonalParameters([])], tmp_path, engine=engine)
    one_phase = train([], tmp_path, engine=engine, local_phases=[LocalPhase()])
    assert torch.equal(empty.server.vector, plain.server.vector)
    assert torch.equal(one_phase.server.vector, plain.server.vector)
    assert empty.ledger.totals == plain.ledger.totals


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_everything_personal_is_local_training(engine: str, tmp_path: Path) -> None:
    """x stays, nothing travels, and a client's model is that of a federation of itself."""
    everyone = FullParticipation()
    trainer = train([PersonalParameters(["*"])], tmp_path, engine=engine, participation=everyone)
    assert torch.equal(trainer.server.vector, trainer.layout.flatten(dict(mlp().double().named_parameters())).detach())
    assert trainer.ledger.totals == {"up": 0, "down": 0}
    for client in (0, 3):
        alone = train([], tmp_path, engine=engine, participation=FixedParticipation([[client]]))
        own = trainer.store.gather("personal", torch.tensor([client]))[0]
        torch.testing.assert_close(own, alone.server.vector, rtol=0, atol=1e-12)


def test_all_of_the_sampled_clients_is_the_subroutine(tmp_path: Path) -> None:
    options: dict[str, Any] = {"system": ExponentialSpeeds(dynamic=True)}
    doubling = DoublingParticipation(clients_per_round=5, initial=5)
    fast = train([PersonalParameters(HEAD)], tmp_path, participation=doubling, **options)
    plain = train([PersonalParameters(HEAD)], tmp_path, participation=UniformParticipation(5), **options)
    assert torch.equal(fast.server.vector, plain.server.vector)
    assert fast.run.progress == plain.run.progress
    assert fast.ledger.totals == plain.ledger.totals


# -- what stays where it is -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_heads_stay_with_their_clients(engine: str, tmp_path: Path) -> None:
    schedule = FixedParticipation([[0, 3], [3, 5]])
    after_one = train([PersonalParameters(HEAD)], tmp_path, engine=engine, participation=schedule, max_rounds=1)
    after_two = train([PersonalParameters(HEAD)], tmp_path, engine=engine, participation=schedule, max_rounds=2)
    heads = [t.store.gather("personal", torch.tensor([0, 3])) for t in (after_one, after_two)]
    assert torch.equal(heads[0][0], heads[1][0])  # client 0 was away
    assert not torch.equal(heads[0][1], heads[1][1])
    assert after_two.store.rows_in_use("personal") == 3
    initial = after_two.layout.flatten(dict(mlp().double().named_parameters())).detach()
    head = head_of(after_two)
    assert torch.equal(after_two.server.vector[head], initial[head])
    assert not torch.equal(after_two.server.vector[~head], initial[~head])


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "lbfgs-like"])
def test_frozen_parameters_are_frozen(optimizer: str, engine: str, tmp_path: Path) -> None:
    """Neither momentum nor weight decay, of the optimizer or of an earlier phase, moves what a phase freezes."""
    module = mlp()
    makers = {
        "momentum": lambda: torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
        "adamw": lambda: torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.5),
        "lbfgs-like": lambda: torch.optim.SGD(
            [{"params": [p]} for p in module.parameters()], lr=0.1, weight_decay=0.1, nesterov=True, momentum=0.5
        ),
    }
    module.configure_optimizers = makers[optimizer]  # type: ignore[method-assign]
    start = mlp().double()
    before = torch.cat([p.detach().flatten() for p in start.parameters()])
    trainer = train([], tmp_path, module, engine=engine, local_phases=[LocalPhase(HEAD, steps=3)], max_rounds=2)
    head = head_of(trainer)
    assert torch.equal(trainer.server.vector[~head], before[~head])
    assert not torch.equal(trainer.server.vector[head], before[head])


def test_an_optimizer_over_matrices_freezes_too(tmp_path: Path) -> None:
    """One that is not elementwise keeps the module's own parameters."""

    class Normed(torch.optim.SGD):
        pass

    module = mlp()
    module.configure_optimizers = lambda: Normed(module.parameters(), lr=0.1, weight_decay=0.1)  # type: ignore[method-assign]
    before = torch.cat([p.detach().flatten() for p in mlp().double().parameters()])
    trainer = train([], tmp_path, module, local_phases=[LocalPhase(HEAD, steps=3)], max_rounds=2)
    head = head_of(trainer)
    assert torch.equal(trainer.server.vector[~head], before[~head])
    assert not torch.equal(trainer.server.vector[head], before[head])


# -- by hand ----------------------------------------------------------------------------------------------------------


class Sum(LightningModule):
    """``F_i(u, v) = a_i/2 (u + v - b_i)^2`` with a shared u and a personal v; a batch is (a_i, b_i)."""

    def __init__(self) -> None:
        super().__init__()
        self.u, self.v = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        a, b = batch
        return (0.5 * a * (self.u + self.v - b) ** 2).sum(dim=-1).mean()

    validation_step = None  # type: ignore[assignment]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def two_clients() -> QuadraticData:
    data = QuadraticData(num_clients=2, dim=1)
    data.curvature = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    data.centre = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    return data


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_fedrep_by_hand(engine: str, tmp_path: Path) -> None:
    """One step on v with rate 0.5, then two on u with rate 0.1, both clients.

    From u = v_i = 0. Client 1 (a=1, b=1): gradient 1*(0-1) = -1, v = 0.5. u: gradient 0.5-1 = -0.5, u = 0.05; gradient
    0.05+0.5-1 = -0.45, u = 0.095. Client 2 (a=2, b=-1): gradient 2*(0+1) = 2, v = -1. u: gradient 2*(0-1+1) = 0; u = 0.
    Mean of u: 0.0475. Round 2 from u = 0.0475, v = (0.5, -1). Client 1: gradient 0.0475+0.5-1 = -0.4525, v = 0.72625;
    u: gradient 0.0475+0.72625-1 = -0.22625, u = 0.070125; gradient -0.203625, u = 0.0904875. Client 2: gradient
    2*(0.0475-1+1) = 0.095, v = -1.0475; u: gradient 2*(0.0475-1.0475+1) = 0. Mean of u: (0.0904875+0.0475)/2.
    """
    phases = [LocalPhase(["v"], steps=1, lr=0.5), LocalPhase(["u"], steps=2)]
    trainer, _ = train_quadratic(
        [PersonalParameters(["v"])], tmp_path, module=Sum(), data=two_clients(), engine=engine, max_rounds=2,
        local_steps=None, local_phases=phases,
    )  # fmt: skip
    heads = trainer.store.gather("personal", torch.arange(2)).squeeze(1)
    assert trainer.server.vector.tolist() == pytest.approx([0.06899375, 0.0], abs=1e-14)
    assert heads.tolist() == pytest.approx([0.72625, -1.0475], abs=1e-14)
    # Per round and client, u alone: 64 bits each way.
    assert trainer.ledger.totals == {"up": 2 * 2 * 64, "down": 2 * 2 * 64}


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_scaffold_on_the_shared_part_by_hand(engine: str, tmp_path: Path) -> None:
    """SCAFFOLD + personal v: K eta of u is 2*0.1, from its own phase; the controls of v stay zero.

    Round 1 is that of FedRep: delta_u = (0.095, 0), so c_1 = -0.095/0.2 = -0.475, c_2 = 0, c = -0.2375.
    Round 2 from u = 0.0475. Client 1: v = 0.72625 as before; u steps with gradient + c - c_1 = gradient + 0.2375:
    -0.22625 + 0.2375 = 0.01125, u = 0.046375; gradient 0.046375+0.72625-1 = -0.227375, + 0.2375 = 0.010125,
    u = 0.0453625. Client 2: v = -1.0475; u: gradient 0 + c - c_2 = -0.2375, u = 0.07125; gradient
    2*(0.07125-1.0475+1) = 0.0475, - 0.2375 = -0.19, u = 0.09025. Mean of u: 0.06780625.
    c_1 = c_1 - c - delta/0.2 = -0.475 + 0.2375 + 0.0021375/0.2 = -0.2268125; c_2 = 0.2375 - 0.04275/0.2 = 0.02375.
    """
    phases = [LocalPhase(["v"], steps=1, lr=0.5), LocalPhase(["u"], steps=2)]
    trainer, _ = train_quadratic(
        [PersonalParameters(["v"]), Scaffold()], tmp_path, module=Sum(), data=two_clients(), engine=engine,
        max_rounds=2, local_steps=None, local_phases=phases,
    )  # fmt: skip
    assert trainer.server.vector.tolist() == pytest.approx([0.06780625, 0.0], abs=1e-14)
    controls = trainer.store.gather("scaffold/control", torch.arange(2))
    assert controls.flatten().tolist() == pytest.approx([-0.2268125, 0.0, 0.02375, 0.0], abs=1e-14)
    # u and c, both ways: what belongs to v never travels.
    assert trainer.ledger.totals == {"up": 2 * 2 * 2 * 64, "down": 2 * 2 * 2 * 64}


# -- who takes part, and how long it takes ----------------------------------------------------------------------------


def test_participants_are_the_fastest_and_the_clock_is_theirs(tmp_path: Path) -> None:
    system = ExponentialSpeeds(dynamic=True, communication=0.25)
    participation = DoublingParticipation(clients_per_round=6, initial=1, rounds_per_stage=2)
    participation.system = system
    expected = 0.0
    for number in range(1, 8):
        chosen = participation.select(number, 20, seed=3)
        invited = participation.invited(chosen, number, 20, seed=3)
        seconds = {int(i): float(system.compute_seconds(i[None], number, 3)) for i in invited}
        count = min(2 ** ((number - 1) // 2), 6)
        assert len(invited) == 6
        assert sorted(sorted(seconds, key=seconds.__getitem__)[:count]) == chosen.tolist()
        expected += max(seconds[i] for i in chosen.tolist()) + 0.25
    trainer = train(
        [], tmp_path, data=ragged_data(20), participation=participation, system=system, max_rounds=7, seed=3
    )
    assert trainer.run.progress.simulated_seconds["time"] == pytest.approx(expected, rel=1e-12)
    assert trainer.summary.last("sim/time")[0] == trainer.run.progress.simulated_seconds["time"]


def test_stages_of_given_lengths() -> None:
    participation = DoublingParticipation(1.0, initial=2, rounds_per_stage=[0, 3, 1])
    assert [participation.stage(number) for number in range(1, 7)] == [1, 1, 1, 2, 2, 2]


def test_all_sampled_clients_are_sent_the_model(tmp_path: Path) -> None:
    """SRPFL: N are sent the shared part, n answer."""
    trainer = train(
        [PersonalParameters(HEAD)], tmp_path, max_rounds=1,
        participation=DoublingParticipation(clients_per_round=6, initial=2), system=ExponentialSpeeds(),
    )  # fmt: skip
    shared = int((~head_of(trainer)).sum()) * 64
    assert trainer.ledger.totals == {"up": 2 * shared, "down": 6 * shared}


def test_order_statistics_of_the_speeds() -> None:
    """The n-th fastest of 100 unit exponentials takes sum_{j=101-n..100} 1/j: 0.105, 0.222, 0.508, 1.590, 5.187."""
    system, ids = ExponentialSpeeds(dynamic=True), torch.arange(100)
    draws = torch.stack([system.compute_seconds(ids, number, 0) for number in range(1, 2001)]).sort(dim=1).values
    for n, expected in ((10, 0.105), (20, 0.222), (40, 0.508), (80, 1.590), (100, 5.187)):
        error = float(draws[:, n - 1].std()) / len(draws) ** 0.5
        assert float(draws[:, n - 1].mean()) == pytest.approx(expected, abs=4 * error + 5e-4)


def test_fixed_speeds_stay_and_ranges_are_kept() -> None:
    ids = torch.arange(2000)
    fixed = ExponentialSpeeds(rates=2.0)
    assert torch.equal(fixed.compute_seconds(ids, 1, 0), fixed.compute_seconds(ids, 9, 0))
    assert float(fixed.compute_seconds(ids, 1, 0).mean()) == pytest.approx(0.5, abs=4 * 0.5 / 2000**0.5)
    means = ExponentialSpeeds(means=[1.0, 100.0], dynamic=True)
    drawn = torch.stack([means.compute_seconds(ids[:50], number, 0) for number in range(2000)]).mean(dim=0)
    assert float(drawn.min()) >= 1.0
    assert float(drawn.max()) < 100 * 1.1
    assert FixedTimes([[1.0, 2.0], [3.0, 4.0]]).compute_seconds(torch.tensor([1]), 4, 0).tolist() == [4.0]


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ([TopK(0.5), PersonalParameters(HEAD)], "must be the first of `callbacks`, before TopK"),
        ([PersonalParameters(HEAD), SSF()], "PersonalParameters and SSF have no meaning together"),
        (
            [PersonalParameters(HEAD), FLSSVRG(20, 30.5, epoch_rounds=2)],
            "PersonalParameters and FLSSVRG have no meaning together",
        ),
        ([PersonalParameters(HEAD), Scaffold(option="I")], "PersonalParameters and Scaffold have no meaning together"),
        ([PersonalParameters(["haed.*"])], "Pattern 'haed.*' matches no parameter"),
    ],
)
def test_stacks_without_meaning(stack: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message.replace("*", r"\*").replace(".", r"\.")):
        train(stack, tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_phases": [LocalPhase()], "local_epochs": 2}, "Give `local_phases`"),
        ({"local_phases": [LocalPhase(["haed"])]}, "Pattern 'haed' matches no parameter"),
        ({"participation": DoublingParticipation(5)}, "needs a `trainer.system` that knows their speeds"),
    ],
)
def test_settings_without_meaning(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train([], tmp_path, **options)


def test_coordinates_move_all_parameters(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="SSF moves all parameters by coordinates"):
        train([SSF()], tmp_path, local_phases=[LocalPhase(HEAD)])


# -- evaluation of clients --------------------------------------------------------------------------------------------


def accuracy_of(trainer: FederatedTrainer, ids: Tensor, params: Tensor) -> float:
    """Mean over all test examples of the clients, by a direct forward."""
    module, correct, count = mlp().double(), 0, 0
    indices, sizes = trainer.data.client_test_indices(ids)
    for row, positions, size in zip(params, indices, sizes.tolist(), strict=True):
        inputs, targets = (part[0] for part in trainer.data.gather_test(positions[None, :size]))
        out = torch.func.functional_call(module, trainer.layout.views(row), (inputs,))
        correct, count = correct + int((out.argmax(dim=1) == targets).sum()), count + size
    return correct / count


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_personal_accuracy(engine: str, tmp_path: Path) -> None:
    stack = [PersonalParameters(HEAD), ClientEvaluation(every_n_rounds=2)]
    trainer = train(stack, tmp_path, engine=engine, max_rounds=4)
    ids = (trainer.data.client_test_sizes > 0).nonzero().squeeze(1)
    head = head_of(trainer)
    params = trainer.server.vector.repeat(len(ids), 1)
    own = trainer.store.gather("personal", ids)
    seen = ~torch.isnan(own[:, 0])
    params[seen.nonzero(), head.nonzero().T] = own[seen]
    assert trainer.summary.last("personal/val_acc")[0] == pytest.approx(accuracy_of(trainer, ids, params), abs=1e-12)
    assert trainer.summary.last("personal/val_acc/worst_tenth")[0] <= trainer.summary.last("personal/val_acc")[0]


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_evaluation_leaves_the_training_alone(engine: str, tmp_path: Path) -> None:
    plain = train([], tmp_path, mlp(dropout=0.3), engine=engine)
    phases = [LocalPhase(HEAD, epochs=2, lr=0.05)]
    tuned = train([ClientEvaluation(1, fine_tune=phases)], tmp_path, mlp(dropout=0.3), engine=engine)
    assert torch.equal(tuned.server.vector, plain.server.vector)


def test_fine_tuning_starts_from_x_and_trains(tmp_path: Path) -> None:
    """Whole-model fine-tuning of every client equals training it alone for as many epochs from x (no shuffling)."""
    options: dict[str, Any] = {"data": ragged_data(batch_size=1000), "max_rounds": 1}
    tuning = ClientEvaluation(1, fine_tune=[LocalPhase(epochs=3, lr=0.2)])
    trainer = train([tuning], tmp_path, **options)
    ids = (trainer.data.client_test_sizes > 0).nonzero().squeeze(1)
    rows = []
    for client in ids.tolist():
        indices, sizes = trainer.data.client_indices(torch.tensor([client]))
        inputs, targets = (part[0] for part in trainer.data.gather(indices[:, : int(sizes[0])]))
        params = trainer.server.vector.clone().requires_grad_()
        for _ in range(3):
            out = torch.func.functional_call(mlp().double(), trainer.layout.views(params), (inputs,))
            (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(out, targets), params)
            params = (params - 0.2 * gradient).detach().requires_grad_()
        rows.append(params.detach())
    expected = accuracy_of(trainer, ids, torch.stack(rows))
    assert trainer.summary.last("personal/val_acc")[0] == pytest.approx(expected, abs=1e-12)
