"""Clients of modules with hooks, shared layers and functions of their own train as in a loop of plain torch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from contract.brought import Net
from torch import Tensor, nn
from torch.nn import functional as F
from worlds import equal_data, train

from lfl.callbacks import SSF, ClientEvaluation
from lfl.engine import LocalPhase
from lfl.participation import FullParticipation

ROUNDS, STEPS, CLIENTS = 3, 2, 4


class TwoNames(Net):
    """Its layers also have names of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Linear(64, 8), nn.Linear(8, 4)
        self.layers = nn.Sequential(nn.Flatten(), self.backbone, nn.Tanh(), self.head)


class MaskedByHook(Net):
    def __init__(self) -> None:
        super().__init__()
        mask = (torch.arange(64) % 2).double()
        self.layers[1].weight.register_hook(lambda gradient: gradient * mask)


class MaskedAfterwards(Net):
    def __init__(self) -> None:
        super().__init__()
        mask = (torch.arange(64) % 2).double()

        def cut(parameter: Tensor) -> None:
            assert parameter.grad is not None
            parameter.grad *= mask

        self.layers[1].weight.register_post_accumulate_grad_hook(cut)


class Activations(Net):
    """A hook's function and the module hold the same dict."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = kept = {"mean": torch.zeros(16, dtype=torch.float64)}

        def keep(layer: nn.Module, _inputs: Any, output: Tensor) -> None:
            kept["now"] = output
            if layer.training:
                kept["mean"] = 0.5 * kept["mean"] + 0.5 * output.detach().mean(0)

        self.layers[1].register_forward_hook(keep)

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return super().loss(logits, y) + (self.kept["now"] - self.kept["mean"]).square().mean()


class Balanced(Net):
    """Its backward pass sets the weight of the next loss, as in GradNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: Any = 1.0
        self.layers[3].register_full_backward_hook(lambda _layer, _ins, outs: self.balance(outs[0]))

    def balance(self, gradient: Tensor) -> None:
        self.scale = 1 / (1 + gradient.detach().abs().sum())

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return super().loss(logits, y) * self.scale


class Clamped(Net):
    """Clips its weights after each step."""

    momentum = 0.0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=self.momentum)

        def clamp(*_: Any) -> None:
            self.layers[1].weight.data.clamp_(-0.1, 0.1)

        optimizer.register_step_post_hook(clamp)
        return optimizer


class ClampedWithMomentum(Clamped):
    momentum = 0.5


class Normalized(Net):
    """Divides its gradient by its norm before each step."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)

        def clip(*_: Any) -> None:
            torch.nn.utils.clip_grad_norm_(self.parameters(), 0.01)

        optimizer.register_step_pre_hook(clip)
        return optimizer


class PaddedTied(Net):
    """An embedding whose row for padding is also an output."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 6, bias=False)
        self.words = nn.Embedding(6, 4, padding_idx=0)
        self.words.weight = self.out.weight

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        words = y + (x.flatten(1).sum(1) > 0)  # 0 is padding
        return F.cross_entropy(self.out(self.words(words) + self.layers(x)), y)


class HeadOnly(Net):
    """Its optimizer has some of its parameters, whose norm is clipped."""

    clips = 0.05

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.layers[3].parameters(), lr=0.1)


KINDS = [TwoNames, MaskedByHook, MaskedAfterwards, Activations, Balanced, Clamped, ClampedWithMomentum, Normalized]
KINDS += [PaddedTied, HeadOnly]


def by_hand(kind: type[Net], data: Any) -> Tensor:
    """The server's vector [D] after some rounds of a loop over clients."""
    torch.manual_seed(0)
    module = kind().double()
    parameters = list(module.parameters())
    server = torch.cat([p.detach().flatten() for p in parameters])
    indices, sizes = data.client_indices(torch.arange(CLIENTS))
    for _ in range(ROUNDS):
        ends = []
        for row, size in zip(indices, sizes.tolist(), strict=True):
            torch.nn.utils.vector_to_parameters(server.clone(), parameters)
            optimizer = module.configure_optimizers()
            batch = tuple(part[0] for part in data.gather(row[None, :size]))
            for step in range(STEPS):
                module.zero_grad()
                module.training_step(batch, step).backward()
                if clip := getattr(kind, "clips", None):
                    own = [p for group in optimizer.param_groups for p in group["params"]]
                    torch.nn.utils.clip_grad_norm_(own, clip)
                optimizer.step()
            ends.append(torch.cat([p.detach().flatten() for p in parameters]))
        server = torch.stack(ends).mean(0)
    return server


@pytest.mark.filterwarnings("ignore:.*is trained one client at a time")
@pytest.mark.parametrize("tunes", [False, True])
@pytest.mark.parametrize("engine", ["sequential", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_clients_are_trained_as_by_hand(kind: type[Net], engine: str, tunes: bool, tmp_path: Path) -> None:
    """Also with fine-tuning beside, which leaves no trace."""
    torch.manual_seed(0)
    module = kind()
    data = equal_data(num_clients=CLIENTS, batch_size=1000)
    beside = [ClientEvaluation(1, scopes=["server", "fine_tuned"], fine_tune=[LocalPhase()])] if tunes else []
    run = train(
        beside,
        tmp_path,
        module,
        data,
        engine=engine,
        max_rounds=ROUNDS,
        local_epochs=STEPS,
        participation=FullParticipation(),
        gradient_clip_val=getattr(kind, "clips", None),
    )
    torch.testing.assert_close(run.server.vector, by_hand(kind, data), rtol=0, atol=1e-12)


def test_what_vmap_takes_is_trained_together_and_recorded(tmp_path: Path) -> None:
    for number, options in enumerate(({"engine": "vectorized"}, {"trace_steps": True})):
        torch.manual_seed(0)
        data = equal_data(num_clients=CLIENTS, batch_size=1000)
        folder = tmp_path / str(number)
        fixed: dict[str, Any] = {"max_rounds": ROUNDS, "local_epochs": STEPS, "participation": FullParticipation()}
        run = train([], folder, TwoNames(), data, **fixed, **options)
        torch.testing.assert_close(run.server.vector, by_hand(TwoNames, data), rtol=0, atol=1e-12)


REFUSED = {
    MaskedByHook: "calls a hook on the gradient",
    MaskedAfterwards: "calls a hook on the gradient",
    Activations: "changes the module's attribute 'kept'",
    Balanced: "changes the module's attribute 'scale'",
    Clamped: "its optimizer SGD has hooks",
    Normalized: "its optimizer SGD has hooks",
    PaddedTied: "has a row for padding, and is tied",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_vmap_does_not_take_is_refused(kind: type[Net], tmp_path: Path) -> None:
    data = equal_data(num_clients=CLIENTS, batch_size=1000)
    with pytest.raises(ValueError, match=REFUSED[kind]):
        train([], tmp_path, kind(), data, engine="vectorized", participation=FullParticipation())


class Seldom(Net):
    """Counts every fifth step, which no trial comes to, and divides its loss by the count."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if (batch_idx + 1) % 5 == 0:
            self.change()
        return super().training_step(batch, batch_idx) / (1 + self.count)

    def change(self) -> None:
        self.count += 1


class SeldomMean(Seldom):
    """Keeps a mean of its weights, as an attribute that is another tensor each time."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(4, dtype=torch.float64)

    def change(self) -> None:
        self.mean = 0.5 * self.mean + 0.5 * self.layers[3].bias.detach()

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return super().loss(logits, y) + (self.layers[3].bias - self.mean).square().sum()


class SeldomTeacher(Seldom):
    """Writes into a frozen number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64), requires_grad=False)

    def change(self) -> None:
        self.scale.mul_(0.5)


@pytest.mark.filterwarnings("ignore:.*is trained one client at a time")
@pytest.mark.parametrize("engine", ["sequential", "auto"])
@pytest.mark.parametrize("kind", [Seldom, SeldomMean])
def test_steps_that_no_trial_has_taken_are_looked_at(kind: type[Net], engine: str, tmp_path: Path) -> None:
    """A cohort whose steps have changed the module is trained again, from what the module was before."""
    runs = []
    for number, options in enumerate(({"engine": "sequential", "trace_steps": False}, {"engine": engine})):
        torch.manual_seed(0)
        data = equal_data(num_clients=CLIENTS, batch_size=1000)
        fixed: dict[str, Any] = {"max_rounds": 2, "local_epochs": 6, "participation": FullParticipation()}
        runs.append(train([], tmp_path / str(number), kind(), data, **fixed, **options))
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-12)


def test_what_cannot_be_put_back_ends_the_run(tmp_path: Path) -> None:
    data = equal_data(num_clients=CLIENTS, batch_size=1000)
    with pytest.raises(RuntimeError, match="has written into 'scale' in steps that have to be taken again"):
        train(
            [], tmp_path, SeldomTeacher(), data, engine="vectorized", local_epochs=6, participation=FullParticipation()
        )


def test_coordinates_are_clipped_whatever_the_optimizer_holds(tmp_path: Path) -> None:
    """They belong to no parameter, so that their norm is over all of them."""
    ends = []
    for number, (engine, clips) in enumerate((("sequential", 0.05), ("vectorized", 0.05), ("sequential", None))):
        torch.manual_seed(0)
        folder, data = tmp_path / str(number), equal_data(num_clients=8)
        run = train([SSF()], folder, HeadOnly(), data, engine=engine, max_rounds=2, gradient_clip_val=clips)
        ends.append(run.server.vector)
    torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=1e-9)
    assert (ends[2] - ends[0]).abs().max() > 1e-3
