"""Clients that are not waited for, against loops that do the work of a client when it is sent the model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from worlds import Bystander, Quadratic, QuadraticData, Rounds, batch_norm, even_data, mlp, train, train_quadratic

from lfl.aggregation import ConstantStaleness, FedAsync, FedBuff, HingeStaleness, PolynomialStaleness
from lfl.callbacks import (
    FLSS,
    FLSSVRG,
    SSF,
    ClientMomentum,
    DifferentialPrivacy,
    FedDC,
    FedDyn,
    FederatedCallback,
    FedSub,
    PersonalParameters,
    Proximal,
    Scaffold,
    SignFlip,
)
from lfl.client.step import ClientStep
from lfl.data.partition import IndexSets, Partition
from lfl.events import EventQueue
from lfl.participation import AsynchronousParticipation, FullParticipation
from lfl.round import Cohort
from lfl.system import ExponentialSpeeds, FixedTimes, TimeSharing
from lfl.trainer import FederatedTrainer

TIMES = [[2.0, 3.0, 7.0]]  # what comes of them with three at work: tests/test_events.py
LR, STEPS = 0.1, 3


def late(buffer: int, times: list[list[float]] = TIMES, concurrency: int | None = None) -> dict[str, Any]:
    participation = AsynchronousParticipation(concurrency or len(times[0]), buffer)
    return {"participation": participation, "system": FixedTimes(times)}


class One(QuadraticData):
    """Three clients with ``F_i(y) = (y - b_i)^2 / 2``, b = 1, 2, 4."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.curvature = torch.ones(3, 1, dtype=torch.float64)
        self.centre = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)


class Path1D(Bystander):
    """The server's model after every round, a number."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_round_end(self, round: Any) -> None:
        self.found.append(float(self.run.server.vector))


def path_of(aggregator: Any, folder: Path, buffer: int, rounds: int, **options: Any) -> list[float]:
    """x after every round, from 0, with one local step ``y = x + (b - x) / 2``."""
    path = Path1D()
    settings = {**late(buffer), "data": One(), "module": Quadratic(1, lr=0.5), "local_steps": 1, "max_rounds": rounds}
    train_quadratic([path], folder, aggregator=aggregator, **{**settings, **options})
    return path.found


def test_fedasync_by_hand(tmp_path: Path) -> None:
    """Clients 0, 1, 0, 1, 0, 2 arrive, with the models x_0, x_0, x_1, x_2, x_3, x_0; x is mixed half and half.

    y = .5, 1, .625, 1.3125, .8125, 2: of x_0 = 0, 0, x_1 = .25, x_2 = .625, x_3 = .625 and 0.
    """
    found = path_of(FedAsync(0.5, ConstantStaleness()), tmp_path, buffer=1, rounds=6)
    assert found == [0.25, 0.625, 0.625, 0.96875, 0.890625, 1.4453125]


def test_fedasync_counts_late_updates_less(tmp_path: Path) -> None:
    """Staleness 0, 1, 1, 1, 1, 5; alpha = .5, then .25, and .5 / 6 = 1 / 12 in the end.

    With a hinge of a = 1 from 1 on it is .5 and, in the end, .5 / 5.
    """
    expected, x = [], [0.0]
    for start, target, alpha in [(0, 1, 0.5), (0, 2, 0.25), (1, 1, 0.25), (2, 2, 0.25), (3, 1, 0.25), (0, 4, 1 / 12)]:
        y = x[start] + (target - x[start]) / 2
        x.append((1 - alpha) * x[-1] + alpha * y)
        expected.append(x[-1])
    assert expected[:3] == [0.25, 0.4375, 0.484375]
    found = path_of(FedAsync(0.5, PolynomialStaleness(1.0)), tmp_path, buffer=1, rounds=6)
    assert found == pytest.approx(expected, abs=1e-15)
    hinge = path_of(FedAsync(0.5, HingeStaleness(1.0, 1.0)), tmp_path / "hinge", buffer=1, rounds=6)
    assert hinge == pytest.approx([0.25, 0.625, 0.625, 0.96875, 0.890625, 0.9 * 0.890625 + 0.2], abs=1e-15)


def test_fedbuff_by_hand(tmp_path: Path) -> None:
    """Rounds of the clients 0 and 1, 0 and 1, 0 and 2, 0 and 1; staleness 0, 0; 0, 0; 0, 2; 0, 1; server rate 2.

    x_1 = .5 + 1 = 1.5. From there client 0 moves by -.25 and 1 by .25: x_2 = 1.5. In round 3 client 0 moves by -.25,
    and 2, from x_0 = 0, by 2, which counts 1 / sqrt(3). In round 4 client 0 starts from x_3, and 1 from x_2.
    """
    rate = {"server_optimizer": lambda params: torch.optim.SGD(params, lr=2.0)}
    found = path_of(FedBuff(), tmp_path, buffer=2, rounds=4, **rate)
    third = 1.5 - 0.25 + 2 / 3**0.5
    fourth = third + (1 - third) / 2 + 0.25 / 2**0.5
    assert found == pytest.approx([1.5, 1.5, third, fourth], abs=1e-15)


def test_clock_staleness_and_downloads(tmp_path: Path) -> None:
    """Of test_events: rounds end at 2, 3, 4, 6, 6, 7; the model goes to 3, 1, 1, 1, 0 and 2 clients, 8 bytes each."""
    rounds = Rounds()
    options = {"data": One(), "module": Quadratic(1), "max_rounds": 6, **late(1)}
    trainer, _ = train_quadratic([rounds], tmp_path, aggregator=FedAsync(), **options)
    logged = [round.metrics for round in rounds.kept]
    assert [row["sim/time"] for row in logged] == [2.0, 3.0, 4.0, 6.0, 6.0, 7.0]
    assert [float(row["async/staleness"]) for row in logged] == [0.0, 1.0, 1.0, 1.0, 1.0, 5.0]
    assert [float(row["async/max_staleness"]) for row in logged] == [0.0, 1.0, 1.0, 1.0, 1.0, 5.0]
    assert [row["comm/down_bytes"] for row in logged] == [24.0, 8.0, 8.0, 8.0, 0.0, 16.0]
    assert [row["comm/up_bytes"] for row in logged] == [8.0] * 6
    # Kept after round 6: what clients 0 and 1 were sent in it. Client 2 starts when round 7 does.
    assert [saved["number"] for saved in trainer.run.outbox.state_dict()["rounds"]] == [6]


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_all_in_the_buffer_at_equal_speeds_is_fedavg(engine: str, tmp_path: Path) -> None:
    """Bit for bit, what is logged and counted included, but for the staleness."""
    rounds = Rounds(), Rounds()
    options: dict[str, Any] = {"engine": engine, "precision": "32-true", "max_rounds": 3}
    system = FixedTimes([[1.5] * 8])
    plain = train([Scaffold(), rounds[0]], tmp_path, participation=FullParticipation(), system=system, **options)
    everyone = AsynchronousParticipation(8, 8)
    found = train(
        [Scaffold(), rounds[1]], tmp_path, participation=everyone, aggregator=FedBuff(), system=system, **options
    )
    assert torch.equal(found.server.vector, plain.server.vector)
    for own, other in zip(*(kept.kept for kept in rounds), strict=True):
        staleness = {own.metrics.pop(name, 0.0) for name in ("async/staleness", "async/max_staleness")}
        staleness |= {other.metrics.pop(name) for name in ("async/staleness", "async/max_staleness")}
        assert {float(value) for value in staleness} == {0.0}
        assert {k: float(v) for k, v in own.metrics.items() if "time/" not in k} == {
            k: float(v) for k, v in other.metrics.items() if "time/" not in k
        }


# -- methods, against a loop -------------------------------------------------------------------------------------------


class Split(Quadratic):
    """The same objective of two parameters, of which each has half of the entries."""

    def __init__(self) -> None:
        super().__init__(6, lr=LR)
        self.own = nn.Parameter(torch.zeros(6))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        curvature, centre = batch
        return 0.5 * (curvature * (torch.cat([self.point, self.own]) - centre) ** 2).sum(dim=-1).mean()


class ProximalTerm(FederatedCallback):
    """``Proximal`` as a term of the loss, which reads x."""

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def client_loss(self, client: ClientStep, loss: Tensor) -> Tensor:
        return loss + self.mu / 2 * (client.params - client.anchor).square().sum()


def expected(
    data: QuadraticData,
    buffer: int,
    rounds: int,
    factor: Callable[[int], float],
    mixes: bool = False,
    mu: float = 0.0,
    controls: bool = False,
    own: slice | None = None,
    momentum: float = 1.0,
    flipped: tuple[int, ...] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """x, c and the clients' own parts after some rounds; clients work when they are sent the model, not on arrival."""
    clients, dim = data.curvature.shape
    times = torch.tensor(SPEEDS[0], dtype=torch.float64)
    events = EventQueue(torch.arange(clients), 4, buffer, lambda ids, k: times[ids], seed=0)
    x, c, m = (torch.zeros(dim, dtype=torch.float64) for _ in range(3))
    c_i, personal = (torch.zeros(clients, dim, dtype=torch.float64) for _ in range(2))
    work: dict[int, dict[str, Tensor]] = {}
    for _ in range(rounds):
        now = events.next_round()
        for i in now.invited.tolist():
            start = x.clone()
            if own is not None:
                start[own] = personal[i, own]
            y = start.clone()
            for _ in range(STEPS):
                gradient = data.curvature[i] * (y - data.centre[i]) + mu * (y - start)
                if controls:
                    gradient = gradient + c - c_i[i]
                y = y - LR * (momentum * gradient + (1 - momentum) * m)
            moved = (-1 if i in flipped else 1) * (y - start)
            change = -c - moved / (STEPS * LR) if controls else torch.zeros(dim)
            work[i] = {"start": x.clone(), "y": y, "moved": moved, "change": change}
        arrived = {i: work.pop(i) for i in now.clients.tolist()}
        staleness = (events.round - now.sent_in).tolist()
        if own is not None:
            for i, done in arrived.items():
                personal[i, own] = done["y"][own]
                done["moved"][own] = 0.0
        steps = [
            factor(s) * (done["moved"] + (done["start"] - x if mixes else 0.0))
            for s, done in zip(staleness, arrived.values(), strict=True)
        ]
        for i, done in arrived.items():
            c_i[i] += done["change"]
            c = c + done["change"] / clients
        m = -sum(done["moved"] for done in arrived.values()) / len(arrived) / (STEPS * LR)
        x = x + sum(steps) / len(steps)
    return x, c, personal


SPEEDS = [[2.0, 3.0, 7.0, 1.0, 4.5, 1.25]]
BUFFER = {"scale": lambda s: (1 + s) ** -0.5, "aggregator": FedBuff}
MIX = {"scale": lambda s: 0.6 * (1 + s) ** -0.5, "aggregator": FedAsync}


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    ("stack", "rule", "buffer", "options"),
    [
        ([], BUFFER, 2, {}),
        ([], MIX, 1, {"mixes": True}),
        ([Proximal(0.5)], BUFFER, 3, {"mu": 0.5}),
        ([ProximalTerm(0.5)], BUFFER, 3, {"mu": 0.5}),
        ([Scaffold()], BUFFER, 3, {"controls": True}),
        ([Scaffold()], MIX, 1, {"controls": True, "mixes": True}),
        ([ClientMomentum(0.4)], BUFFER, 2, {"momentum": 0.4}),
        ([PersonalParameters(["own"])], BUFFER, 3, {"own": slice(6, 12)}),
        ([PersonalParameters(["own"])], MIX, 1, {"own": slice(6, 12), "mixes": True}),
        ([SignFlip(0.5)], BUFFER, 2, {"flipped": "by the callback"}),
    ],
)
def test_clients_work_on_what_they_were_sent(
    stack: list[Any], rule: dict[str, Any], buffer: int, options: dict[str, Any], engine: str, tmp_path: Path
) -> None:
    """Four of six at work, of very different speeds; 12 rounds, in which most updates are late."""
    data = QuadraticData(6)
    settings = {"data": data, "module": Split(), "local_steps": STEPS, "max_rounds": 12, "engine": engine}
    aggregator = rule["aggregator"]()
    trainer, _ = train_quadratic(stack, tmp_path, aggregator=aggregator, **settings, **late(buffer, SPEEDS, 4))
    if "flipped" in options:
        options = {"flipped": tuple(stack[0].ids.tolist())}
    x, c, personal = expected(data, buffer, 12, rule["scale"], **options)
    torch.testing.assert_close(trainer.server.vector, x, rtol=0, atol=1e-13)
    if "controls" in options:
        torch.testing.assert_close(stack[0].control, c, rtol=0, atol=1e-13)
        own = trainer.store.gather("scaffold/control", torch.arange(6))
        torch.testing.assert_close(own.mean(dim=0), c, rtol=0, atol=1e-13)  # c = mean c_i stays
    if "own" in options:
        kept = trainer.store.gather("personal", torch.arange(6)).nan_to_num(0.0)
        torch.testing.assert_close(kept, personal[:, options["own"]], rtol=0, atol=1e-13)


class Sizes(FederatedCallback):
    """How many clients were trained together, and how old what they were sent is."""

    def __init__(self) -> None:
        self.found: list[tuple[int, list[int]]] = []

    def on_cohort_start(self, cohort: Cohort) -> None:
        self.found.append((cohort.round.number, cohort.staleness.tolist()))


def test_clients_of_different_rounds_are_trained_together_where_x_is_all_that_was_sent(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": QuadraticData(6), "module": Split(), "max_rounds": 8, "engine": "vectorized"}
    together, apart, by_term = Sizes(), Sizes(), Sizes()
    for sizes, others in ((together, []), (apart, [Scaffold()]), (by_term, [ProximalTerm(0.1)])):
        train_quadratic([*others, sizes], tmp_path, aggregator=FedBuff(), **options, **late(3, SPEEDS, 4))
    assert [len(found) for _, found in together.found] == [3] * 8
    assert any(len(set(found)) > 1 for _, found in together.found)
    assert all(len(set(found)) == 1 for _, found in apart.found + by_term.found)
    assert sum(len(found) for _, found in apart.found) == sum(len(found) for _, found in by_term.found) == 24


# -- refusals ----------------------------------------------------------------------------------------------------------


def fit(folder: Path, callbacks: list[Any] | None = None, **options: Any) -> FederatedTrainer:
    settings = {"participation": AsynchronousParticipation(3, 2), "system": ExponentialSpeeds(), **options}
    return train(callbacks or [], folder, **settings)


@pytest.mark.parametrize(
    "callback",
    [SSF(), FedSub(), FLSS(), FLSSVRG(20, 30.5, 2), FedDyn(), FedDC(), DifferentialPrivacy(clip=0.3, quantile=0.5)],
)
def test_methods_that_need_rounds_are_refused(callback: FederatedCallback, tmp_path: Path) -> None:
    name = type(callback).__name__
    with pytest.raises(
        ValueError, match=f"^{name} and AsynchronousParticipation have no meaning together: .* sent the same"
    ):
        fit(tmp_path, [callback])


def test_what_cannot_be(tmp_path: Path) -> None:
    for system in (None, TimeSharing(1e6)):
        with pytest.raises(ValueError, match=r"AsynchronousParticipation takes .* needs a `trainer.system` that knows"):
            fit(tmp_path, system=system)
    with pytest.raises(ValueError, match=r"`buffer=4` of AsynchronousParticipation must be at most `concurrency=3`"):
        AsynchronousParticipation(3, 4)
    for name in ("buffer", "concurrency"):
        with pytest.raises(ValueError, match=f"`{name}=0` of AsynchronousParticipation must be a whole number"):
            AsynchronousParticipation(**{name: 0})
    with pytest.raises(ValueError, match=r"`concurrency=9` of AsynchronousParticipation, but 8 of the 8 clients have"):
        fit(tmp_path, participation=AsynchronousParticipation(9))
    with pytest.raises(ValueError, match=r"`trainer.buffers=average` and AsynchronousParticipation have no meaning"):
        fit(tmp_path, module=batch_norm(), data=even_data())


def test_buffers_that_are_not_averaged(tmp_path: Path) -> None:
    trainer = fit(tmp_path, module=batch_norm(), data=even_data(), buffers="client", max_rounds=2)
    assert trainer.current_round == 2


class Empty(QuadraticData):
    """Six clients, of which the first two have no example."""

    def __init__(self) -> None:
        super().__init__(4)
        sets = IndexSets(torch.arange(4), torch.tensor([0, 0, 0, 1, 2, 3, 4]))
        self.num_clients, self.partition = 6, Partition(sets, sets)


def test_clients_without_examples_are_not_sent_the_model(tmp_path: Path) -> None:
    rounds = Rounds()
    options = {"data": Empty(), "max_rounds": 8, **late(2, SPEEDS, 4)}
    train_quadratic([rounds], tmp_path, aggregator=FedBuff(), **options)
    for round in rounds.kept:
        assert len(round.clients) == 2
        assert not {0, 1} & set(round.clients.tolist() + round.invited.tolist())
    with pytest.raises(ValueError, match=r"`concurrency=5` of AsynchronousParticipation, but 4 of the 6 clients have"):
        train_quadratic([], tmp_path, data=Empty(), **late(2, SPEEDS, 5))


def test_a_round_whose_updates_are_refused_takes_its_time(tmp_path: Path) -> None:
    """The third update is not finite: nothing moves, and the clock goes on."""

    class Broken(FederatedCallback):
        def on_step_end(self, cohort: Cohort) -> None:
            if cohort.round.number == 3:
                cohort.values.fill_(torch.nan)

    rounds = Rounds()
    options = {"data": One(), "module": Quadratic(1), "max_rounds": 4, "on_nonfinite": "skip", **late(1)}
    train_quadratic([Broken(), rounds], tmp_path, aggregator=FedAsync(), **options)
    assert [round.num_reported for round in rounds.kept] == [1, 1, 0, 1]
    assert [round.metrics["sim/time"] for round in rounds.kept] == [2.0, 3.0, 4.0, 6.0]


def test_a_model_that_is_kept_is_a_copy(tmp_path: Path) -> None:
    """State that a callback sends, and changes in place afterwards, is what it was to those who are late."""

    class Counting(FederatedCallback):
        def on_run_start(self, federation: Any) -> None:
            self.count = torch.zeros(1)
            self.found: list[float] = []

        def on_download(self, message: Any) -> None:
            message.add("count", self.count)

        def on_cohort_start(self, cohort: Cohort) -> None:
            self.found += [float(cohort.received["count"])] * len(cohort)

        def on_server_step(self, round: Any) -> None:
            self.count += 1

    counting = Counting()
    options = {"data": One(), "module": Quadratic(1), "max_rounds": 6, **late(1)}
    train_quadratic([counting], tmp_path, aggregator=FedAsync(), **options)
    assert counting.found == [0.0, 0.0, 1.0, 2.0, 3.0, 0.0]


def test_the_same_participation_serves_other_runs(tmp_path: Path) -> None:
    """Its events are those of the system and the seed of the run."""
    participation = AsynchronousParticipation(3, 2)
    first, other, again = (
        fit(tmp_path, module=mlp(), participation=participation, system=ExponentialSpeeds(means=m), seed=s)
        for m, s in ((1.0, 0), ([1.0, 9.0], 1), (1.0, 0))
    )
    assert torch.equal(first.server.vector, again.server.vector)
    assert not torch.equal(first.server.vector, other.server.vector)
