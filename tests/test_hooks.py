"""What hooks return and leave behind: wrong shapes, lost steps and NaN are named with the callback that made them."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import Rounds, mlp, ragged_data, train

from lfl.aggregation import Aggregator, MeanAggregator
from lfl.callbacks import FederatedCallback, Scaffold, TopK
from lfl.comm import Payload
from lfl.engine import LocalPhase
from lfl.hooks import NonFiniteUpdateError
from lfl.participation import FixedParticipation

D = 832  # of `mlp()`


def stacked(**hooks: Any) -> FederatedCallback:
    return type("Mine", (FederatedCallback,), hooks)()  # type: ignore[no-any-return]


def on_step_end_replaced(self: Any, cohort: Any) -> None:
    cohort.values = cohort.values[:, :3]


def on_step_end_scaled(self: Any, cohort: Any) -> None:
    cohort.values = cohort.values * 0.9


def on_cohort_end_cut(self: Any, cohort: Any) -> None:
    cohort.values = cohort.values[:, :3]


def upload(shape: tuple[int, ...]) -> Any:
    return lambda self, cohort: cohort.upload("mine", torch.zeros(shape))


def update(shape: tuple[int, ...]) -> Any:
    return lambda self, round: setattr(round, "update", torch.zeros(shape, dtype=torch.float64))


def gradient_of(change: Any) -> Any:
    return lambda self, cohort, gradient: lambda params, step: change(gradient(params, step))


def doubled(self: Any, round: Any) -> Tensor:
    return round.update * 2


def doubled_models(self: Any, ids: Tensor, params: Tensor) -> Tensor:
    return params * 2


class Cut(MeanAggregator):
    def result(self) -> Tensor:
        return super().result()[:5]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "wrap_gradient, one row": (
        {"wrap_gradient": gradient_of(lambda g: g[0])},
        rf"^`Mine.wrap_gradient`: the gradients must be a tensor of shape \(2, {D}\), got one of shape \({D},\)\.$",
    ),
    "wrap_gradient, a mean": (
        {"wrap_gradient": gradient_of(lambda g: g.mean(0, keepdim=True))},
        rf"^`Mine.wrap_gradient`: the gradients must be a tensor of shape \(2, {D}\), got one of shape \(1, {D}\)\.$",
    ),
    "wrap_gradient, None": (
        {"wrap_gradient": gradient_of(lambda g: None)},
        r"^`Mine.wrap_gradient`: the gradients must be a tensor of shape .*, got a NoneType\.$",
    ),
    "on_step_end, another tensor": (
        {"on_step_end": on_step_end_scaled},
        rf"^`Mine` has replaced `cohort.values`, of shape \(2, {D}\), by another tensor of shape \(2, {D}\) in a l",
    ),
    "on_cohort_end, values": (
        {"on_cohort_end": on_cohort_end_cut},
        rf"^`Mine.on_cohort_end`: `cohort.values` must be a tensor of shape \(2, {D}\), got one of shape \(2, 3\)\.$",
    ),
    "on_cohort_end, upload": (
        {"on_cohort_end": upload((5, 3))},
        r"^`Mine.on_cohort_end`: the upload 'mine' must be a tensor of shape \(2, \.\.\.\), got .* \(5, 3\)\.$",
    ),
    "on_cohort_end, bits": (
        {"on_cohort_end": lambda self, cohort: cohort.upload("mine", torch.zeros(2, 1), torch.zeros(3))},
        r"^`Mine.on_cohort_end`: the bits of the upload 'mine' must be a tensor of shape \(2,\), got .* \(3,\)\.$",
    ),
    "on_cohort_end, another's upload": (
        {"on_cohort_end": lambda self, cohort: cohort.upload("control", torch.zeros(2, 1))},
        r"^`Mine.on_cohort_end` uploads 'control', which another callback has uploaded\.$",
    ),
    "change_batch, None": (
        {"change_batch": lambda self, cohort, rows, batch: None},
        r"^`Mine.change_batch` must return the batch, got None\.$",
    ),
    "encode, one row": (
        {"encode": lambda self, cohort, payload: Payload(payload.values.mean(0), 1)},
        rf"^`Mine.encode`: `Payload.values` must be a tensor of shape \(2, n\), got one of shape \({D},\)\.$",
    ),
    "encode, other clients": (
        {"encode": lambda self, cohort, payload: Payload(payload.values[:1], 1)},
        rf"^`Mine.encode`: `Payload.values` must be a tensor of shape \(2, n\), got one of shape \(1, {D}\)\.$",
    ),
    "encode, bits": (
        {"encode": lambda self, cohort, payload: Payload(payload.values, torch.zeros(7))},
        r"^`Mine.encode`: `Payload.bits` must be a tensor of shape \(2,\), got one of shape \(7,\)\.$",
    ),
    "encode, a tensor": (
        {"encode": lambda self, cohort, payload: payload.values},
        rf"^`Mine.encode` must return a `Payload`, got a tensor of shape \(2, {D}\)\.$",
    ),
    "decode, of a mean": (
        {"encode": lambda self, cohort, payload: payload, "decode": lambda self, round, values: values[:4]},
        rf"^`Mine.decode`: the decoded update must be a tensor of shape \({D},\), got one of shape \(4,\)\.$",
    ),
    "decode, of rows": (
        {
            "linear": False,
            "encode": lambda self, cohort, payload: Payload(payload.values[:, :9], 1),
            "decode": lambda self, round, values: values,
        },
        rf"^`Mine.decode`: the decoded update must be a tensor of shape \(2, {D}\), got one of shape \(2, 9\)\.$",
    ),
    "on_aggregate, a number": (
        {"on_aggregate": update(())},
        rf"^`Mine.on_aggregate`: `round.update` must be a tensor of shape \({D},\), got one of shape \(\)\.$",
    ),
    "on_aggregate, rows": (
        {"on_aggregate": update((1, D))},
        rf"^`Mine.on_aggregate`: `round.update` must be a tensor of shape \({D},\), got one of shape \(1, {D}\)\.$",
    ),
    "on_aggregate, returned": (
        {"on_aggregate": doubled},
        rf"^`Mine.on_aggregate` returned a tensor of shape \({D},\), which nobody reads: set `round.update`\.$",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_shapes_are_named_with_callback_and_hook(name: str, tmp_path: Path) -> None:
    hooks, message = WRONG[name]
    rounds = Rounds()
    options: dict[str, Any] = {"engine": "vectorized", "participation": FixedParticipation([[0, 3]])}
    with pytest.raises(ValueError, match=message):
        train([Scaffold(), rounds, stacked(**hooks)], tmp_path, **options)
    assert rounds.kept == []


def test_values_of_another_width_are_named_too(tmp_path: Path) -> None:
    callback = stacked(on_step_end=on_step_end_replaced)
    with pytest.raises((ValueError, RuntimeError, IndexError)):
        train([callback], tmp_path, local_steps=2)
    with pytest.raises(ValueError, match=r"`Mine` has replaced `cohort.values`, of shape .* by .* of shape \(1, 3\)"):
        train([callback], tmp_path, local_steps=1)


def test_values_that_are_changed_in_place_are_right(tmp_path: Path) -> None:
    scaled = stacked(on_step_end=lambda self, cohort: cohort.values.mul_(0.5))
    trainer = train([scaled], tmp_path, max_rounds=1, local_steps=1)
    plain = train([], tmp_path, max_rounds=1, local_steps=1)
    torch.testing.assert_close(trainer.server.vector, 0.5 * plain.server.vector)


def test_an_aggregate_of_another_shape_is_the_aggregators(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^`Cut.result`: the aggregate must be a tensor of shape \({D},\), g"):
        train([], tmp_path, aggregator=Cut("uniform"))


def test_personal_models_are_written_in_place(tmp_path: Path) -> None:
    callback = stacked(personalize=doubled_models)
    run = train([callback], tmp_path, max_rounds=1).run
    with pytest.raises(
        ValueError, match=rf"`Mine.personalize` returned .* of shape \(3, {D}\), .*: write into `params`"
    ):
        run.personal_models(torch.arange(3))


class Spoiled(MeanAggregator):
    def result(self) -> Tensor:
        return super().result() / 0.0


def spoil(self: Any, round: Any) -> None:
    if round.number == 2:
        round.update = round.update / 0.0


def spoil_server(self: Any, round: Any) -> None:
    if round.number == 2:
        self.vector.fill_(math.nan)


def spoil_encoded(self: Any, cohort: Any, payload: Payload) -> Payload:
    if cohort.round.number == 2 and 3 in cohort.ids:
        payload.values[cohort.ids.tolist().index(3), 0] = math.inf
    return payload


NOT_FINITE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "aggregator": ({}, {"aggregator": Spoiled()}, r"^`Spoiled.result` has made NaN or inf of .* of round 1's clients"),
    "on_aggregate": (
        {"on_aggregate": spoil},
        {},
        r"^`Mine.on_aggregate` has made NaN or inf of .* of round 2's clients",
    ),
    "server optimizer": (
        {},
        {"server_optimizer": lambda params: torch.optim.SGD(params, lr=math.inf)},
        r"^`server_optimizer` has made the server's model NaN or inf in round [12]",
    ),
    "on_server_step": (
        {
            "on_run_start": lambda self, federation: setattr(self, "vector", federation.server.vector),
            "on_server_step": spoil_server,
        },
        {},
        r"^`Mine.on_server_step` has made the server's model NaN or inf in round 2",
    ),
    "encode": (
        {"encode": spoil_encoded, "linear": False},
        {},
        r"^`on_cohort_end`, `encode` or `decode` of `Mine` has made NaN or inf of .* client\(s\) 3 in round 2\.$",
    ),
}


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", NOT_FINITE)
def test_what_is_not_finite_is_named_in_its_own_round(name: str, engine: str, tmp_path: Path) -> None:
    """And not in the next one, as updates of the clients that were sent it, whatever `on_nonfinite` says of those."""
    hooks, options, message = NOT_FINITE[name]
    with pytest.raises(NonFiniteUpdateError, match=message):
        train(
            [stacked(**hooks)], tmp_path, engine=engine, on_nonfinite="skip",
            participation=FixedParticipation([[0, 3]]), **options,
        )  # fmt: skip


def test_large_finite_numbers_are_no_error(tmp_path: Path) -> None:
    """Their sum overflows."""
    large = stacked(on_aggregate=lambda self, round: round.update.fill_(1e308))
    trainer = train([large], tmp_path, max_rounds=1)
    assert trainer.server.vector.max() == 1e308


class Median(Aggregator):
    """Keeps rows."""

    def start(self) -> None:
        super().start()
        self.rows: list[Tensor] = []

    def add(self, rows: Tensor, weights: Tensor) -> None:
        self.rows.append(rows.double())

    def result(self) -> Tensor:
        return torch.cat(self.rows).median(dim=0).values


def test_an_aggregator_that_keeps_rows_is_right_on_one_process(tmp_path: Path) -> None:
    updates: list[Tensor] = []
    keep = stacked(on_cohort_end=lambda self, cohort: updates.append(cohort.delta.clone()))
    before = torch.cat([p.detach().flatten() for p in mlp().double().parameters()])
    trainer = train([keep], tmp_path, aggregator=Median(), max_rounds=1)
    expected = before + torch.cat(updates).median(dim=0).values
    torch.testing.assert_close(trainer.server.vector, expected, rtol=0, atol=1e-12)


def declaring(name: str, late: bool = False) -> FederatedCallback:
    class Keeps(FederatedCallback):
        def on_run_start(self, federation: Any) -> None:
            self.store = federation.store
            if not late:
                self.declare()

        def on_cohort_end(self, cohort: Any) -> None:
            if late:
                self.declare()

        def declare(self) -> None:
            self.store.declare(name, 1, torch.float64)

    return Keeps()


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        (lambda: [declaring("a"), declaring("a")], "^Two Keeps share the client slot 'a', and would read each other's"),
        (lambda: [declaring("a", late=True), declaring("a")], "^Two Keeps share the client slot 'a'"),
        (lambda: [declaring("a", True), declaring("a", True)], "^Two Keeps share the client slot 'a'"),
        (
            lambda: [Scaffold(), declaring("scaffold/control")],
            "^Scaffold and Keeps share the client slot 'sca",
        ),
        (lambda: [TopK(), declaring("top-k/error")], "^TopK and Keeps share the client slot 'top-k/error'"),
    ],
)
def test_a_client_slot_has_one_owner(stack: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(stack(), tmp_path, max_rounds=1)
    train([declaring("a"), declaring("b", late=True)], tmp_path, max_rounds=2)


def test_checks_do_not_change_a_number(tmp_path: Path) -> None:
    """A callback that does all of it and changes nothing is FedAvg, bit for bit."""
    idle = {
        "wrap_gradient": gradient_of(lambda g: g),
        "on_step_end": lambda self, cohort: None,
        "on_cohort_end": lambda self, cohort: None,
        "encode": lambda self, cohort, payload: payload,
        "decode": lambda self, round, values: values,
        "on_aggregate": lambda self, round: None,
        "on_server_step": lambda self, round: None,
    }
    # Where no hook reads gradients, a recording of plain SGD adds them to the parameters at once, equal to rounding.
    options: dict[str, Any] = {"engine": "vectorized", "local_phases": [LocalPhase(epochs=2)], "trace_steps": False}
    trainers = [train(stack, tmp_path, mlp(), ragged_data(), **options) for stack in ([stacked(**idle)], [])]
    assert torch.equal(trainers[0].server.vector, trainers[1].server.vector)
