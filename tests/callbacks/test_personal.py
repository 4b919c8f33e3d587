"""Personal parameters: limits, rounds by hand, bytes, and what they do not go with."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from worlds import HEAD, QuadraticData, head_of, mlp, train, train_quadratic

from lfl.callbacks import FLSSVRG, SSF, ClientEvaluation, PersonalParameters, Scaffold, TopK
from lfl.engine import LocalPhase
from lfl.participation import DoublingParticipation, FixedParticipation, FullParticipation, UniformParticipation
from lfl.system import ExponentialSpeeds


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


FEDPER = [PersonalParameters(HEAD)], {"local_epochs": 1}
FEDBABU = [PersonalParameters(HEAD)], {"local_phases": [LocalPhase(["backbone.[!h]*"], epochs=1)]}


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize(("method", "trains_head"), [(FEDPER, True), (FEDBABU, False)])
def test_fedper_and_fedbabu_train_and_send(method: Any, trains_head: bool, engine: str, tmp_path: Path) -> None:
    """Both send the features alone; FedPer trains all at once, FedBABU under the one head that is never trained."""
    stack, work = method
    options: dict[str, Any] = {"engine": engine, "participation": FullParticipation(), **work}
    trainer = train(stack, tmp_path, max_rounds=2, **options)
    initial = trainer.layout.flatten(dict(mlp().double().named_parameters())).detach()
    head = head_of(trainer)
    rows = trainer.store.gather("personal", torch.arange(8))
    assert torch.equal(trainer.server.vector[head], initial[head])
    assert not torch.equal(trainer.server.vector[~head], initial[~head])
    assert (
        bool((rows != initial[head]).any(dim=1).all()) if trains_head else torch.equal(rows, initial[head].repeat(8, 1))
    )
    sent = 2 * 8 * 64 * int((~head).sum())
    assert trainer.ledger.totals == {"up": sent, "down": sent}


def test_fedbabu_is_fine_tuned_from_the_common_head(tmp_path: Path) -> None:
    """By evaluation alone: the clients' stored heads stay the common one."""
    phases = FEDBABU[1]["local_phases"]
    tuning = ClientEvaluation(every_n_rounds=2, fine_tune=[LocalPhase(HEAD, epochs=5, lr=0.3)])
    untuned = ClientEvaluation(every_n_rounds=2, name="before")
    options: dict[str, Any] = {"local_phases": phases, "participation": FullParticipation(), "max_rounds": 2}
    trainer = train([PersonalParameters(HEAD), tuning, untuned], tmp_path, **options)
    plain = train([PersonalParameters(HEAD)], tmp_path, **options)
    assert torch.equal(trainer.server.vector, plain.server.vector)
    rows = [t.store.gather("personal", torch.arange(8)) for t in (trainer, plain)]
    assert torch.equal(rows[0], rows[1])
    assert trainer.summary.last("personal/val_loss")[0] < trainer.summary.last("before/val_loss")[0]


def test_all_sampled_clients_are_sent_the_model(tmp_path: Path) -> None:
    """SRPFL: N are sent the shared part, n answer."""
    trainer = train(
        [PersonalParameters(HEAD)], tmp_path, max_rounds=1,
        participation=DoublingParticipation(clients_per_round=6, initial=2), system=ExponentialSpeeds(),
    )  # fmt: skip
    shared = int((~head_of(trainer)).sum()) * 64
    assert trainer.ledger.totals == {"up": 2 * shared, "down": 6 * shared}


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
