"""The hooks of a LightningModule see what Lightning promises them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from contract.brought import Net
from torch import Tensor, nn
from torch.nn import functional as F
from worlds import Bystander, equal_data, ragged_data, train

from lfl.callbacks import ClientEvaluation
from lfl.client.model import ClientModel
from lfl.client.work import LocalPhase

ENGINES = ["sequential", "vectorized"]
HOOKS = ["on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_epoch_end", "on_train_end", "on_fit_end"]


class Watching(Net):
    """Keeps its weights at every hook."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int, Tensor, bool]] = []


def _keep(name: str) -> Any:
    def hook(self: Watching) -> None:
        vector = nn.utils.parameters_to_vector(self.parameters()).detach().clone()
        self.seen.append((name, self.current_epoch, vector, self.training))

    return hook


for _name in (
    *HOOKS,
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_epoch_end",
    "on_validation_end",
):
    setattr(Watching, _name, _keep(_name))


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_module_is_the_servers_in_every_hook(engine: str, every: int, tmp_path: Path) -> None:
    servers: list[Tensor] = []

    class Kept(ClientEvaluation):
        """Evaluates clients too, and keeps x after every round."""

        def on_server_step(self, round: Any) -> None:
            servers.append(self._federation.server.vector.clone())

    torch.manual_seed(0)
    module = Watching()
    start = nn.utils.parameters_to_vector(module.parameters()).detach().clone().double()
    options = {"engine": engine, "check_val_every_n_rounds": every, "max_rounds": 3}
    train([Kept(every_n_rounds=1)], tmp_path, module, ragged_data(), **options)
    servers.insert(0, start)
    for name, epoch, vector, training in module.seen:
        is_late = name in ("on_train_end", "on_fit_end")
        number = epoch if name in ("on_fit_start", "on_train_start", "on_train_epoch_start") or is_late else epoch + 1
        assert torch.equal(vector, servers[number]), (name, epoch)
        assert training != name.startswith("on_validation"), name
    names = [name for name, *_ in module.seen]
    # The clients' evaluations are on a copy: what its hooks keep is not the server's.
    assert names.count("on_validation_epoch_end") == 3 // every
    assert [n for n in names if "epoch" not in n and "validation" not in n] == [h for h in HOOKS if "epoch" not in h]


class Joining(Net):
    """Keeps outputs on the module and joins them at the end of the epoch (Lightning's migration guide to 2.0)."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[Tensor] = []
        self.hits: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.losses.append(super().training_step(batch, batch_idx).detach())
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        self.log("steps", float(len(self.losses)))
        self.losses.clear()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.hits.append((self(batch[0]).argmax(1) == batch[1]).double())

    def on_validation_epoch_end(self) -> None:
        hits = torch.cat(self.hits)
        self.log_dict({"val_acc": hits.mean(), "val_count": float(len(hits))})
        self.hits.clear()


@pytest.mark.parametrize("fine_tune", [None, [LocalPhase()]])
def test_outputs_that_are_kept_are_those_of_the_round(fine_tune: Any, tmp_path: Path) -> None:
    runs = []
    for callbacks in ([], [ClientEvaluation(every_n_rounds=1, fine_tune=fine_tune, direction={"val_count": "max"})]):
        torch.manual_seed(0)
        module = Joining()
        runs.append(train(callbacks, tmp_path, module, ragged_data(), max_rounds=2, check_val_every_n_rounds=1))
        assert module.losses == module.hits == []
    taken = int(runs[0].run.work.num_steps(runs[0].data.client_sizes[last_clients(runs[0])], 5).sum())
    for run in runs:
        assert run.summary.last("steps")[0] == taken
        assert run.summary.last("val_count")[0] == 40
        assert run.summary.last("val_acc") == runs[0].summary.last("val_acc")
    # A client's evaluation is the same hook on its own examples: the mean over all examples is that of the server.
    if fine_tune is None:
        personal = runs[1].summary.last("personal/val_acc")[0]
        assert personal == pytest.approx(runs[1].summary.last("val_acc")[0])


def last_clients(trainer: Any) -> Tensor:
    run = trainer.run
    return run.participation.select(run.progress.round, run.num_clients, run.seed)


class EMA(Net):
    """Averages the server's weights over rounds, and evaluates the average."""

    def __init__(self) -> None:
        super().__init__()
        self.average: Tensor | None = None

    def on_train_epoch_end(self) -> None:
        vector = nn.utils.parameters_to_vector(self.parameters()).detach()
        self.average = vector.clone() if self.average is None else 0.5 * self.average + 0.5 * vector


@pytest.mark.parametrize("engine", ENGINES)
def test_an_average_of_weights_is_that_of_the_rounds(engine: str, tmp_path: Path) -> None:
    module = EMA()
    vectors = []
    for rounds in (1, 2):
        torch.manual_seed(0)
        module = EMA()
        vectors.append(
            train([], tmp_path, module, ragged_data(), engine=engine, max_rounds=rounds).server.vector.clone()
        )
    torch.testing.assert_close(module.average, 0.5 * vectors[0] + 0.5 * vectors[1], rtol=0, atol=1e-12)


def test_what_is_under_vmap_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="changes the module's attribute 'losses'"):
        train([], tmp_path, Joining(), ragged_data(), engine="vectorized")


class BatchNormed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4))
        self.order: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.order.append(batch)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_one_client_with_batch_norm_equals_the_plain_loop(batch_size: int, tmp_path: Path) -> None:
    """Also with batches of one image, whose channels have many values."""
    torch.manual_seed(0)
    module = BatchNormed()
    options = {"max_rounds": 2, "participation": everyone(), "precision": "64-true"}
    train([], tmp_path, module, ragged_data(1, batch_size=batch_size), **options)
    torch.manual_seed(0)
    plain = BatchNormed().double()
    optimizer = plain.configure_optimizers()
    for x, y in module.order:
        optimizer.zero_grad()
        F.cross_entropy(plain.layers(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(module.state_dict(), plain.state_dict(), rtol=0, atol=1e-12)


def everyone() -> Any:
    from lfl.participation import FullParticipation

    return FullParticipation()


class Scaled(Net):
    """Multiplies its loss by a frozen number, which it changes itself, as momentum encoders and mean teachers do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return super().loss(logits, y) * self.scale

    def shrink(self) -> None:
        self.scale.data.mul_(0.9)


class ScaledEachRound(Scaled):
    def on_train_epoch_start(self) -> None:
        self.shrink()


class ReplacedEachRound(Scaled):
    def on_train_epoch_start(self) -> None:
        self.scale.data = self.scale.data * 0.9


class ScaledEachStep(Scaled):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.shrink()
        return super().training_step(batch, batch_idx)


def scaled_run(kind: type[Net], folder: Path, batch_size: int = 5, **options: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    module = kind()
    evaluation = ClientEvaluation(every_n_rounds=1, fine_tune=[LocalPhase()])
    return module, train(
        [evaluation], folder, module, equal_data(batch_size=batch_size), participation=everyone(), **options
    )


@pytest.mark.parametrize("options", [{}, {"trace_steps": True}, {"engine": "vectorized", "trace_steps": True}])
@pytest.mark.parametrize("kind", [ScaledEachRound, ReplacedEachRound])
def test_a_frozen_number_is_changed_once_a_round(kind: type[Net], options: Any, tmp_path: Path) -> None:
    """And steps, those of fine-tuning too, read it as it is: as if the rate had been multiplied by it."""
    module, run = scaled_run(kind, tmp_path / "changed", max_rounds=3, **options)
    assert module.scale.item() == pytest.approx(0.9**3, abs=1e-12)

    class Scheduled(Net):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.09)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    _, expected = scaled_run(Scheduled, tmp_path / "rate", max_rounds=3, **options)
    torch.testing.assert_close(run.server.vector, expected.server.vector, rtol=0, atol=1e-12)
    tuned = run.summary.last("personal/val_loss")[0]
    assert tuned == pytest.approx(expected.summary.last("personal/val_loss")[0], abs=1e-12)


def test_a_frozen_number_is_changed_once_a_step(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="its training step changes the parameter 'scale' by itself"):
        module, _ = scaled_run(ScaledEachStep, tmp_path, max_rounds=2, engine="auto")
    assert module.scale.item() == pytest.approx(0.9 ** (2 * 8 * 3), abs=1e-12)  # rounds, clients, batches


class Annealed(Net):
    """Mixes a buffer into its logits that grows with the rounds; nobody keeps it in a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(4))

    def on_train_epoch_start(self) -> None:
        self.shift[0] = 3.0 * self.current_epoch

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.shift


@pytest.mark.parametrize("trace_steps", [False, True])
def test_fine_tuning_reads_buffers_as_they_are(trace_steps: bool, tmp_path: Path) -> None:
    found = {}
    for engine in ENGINES:
        options = {"engine": engine, "trace_steps": trace_steps, "max_rounds": 3, "batch_size": 15}
        _, run = scaled_run(Annealed, tmp_path / engine, **options)
        found[engine] = run.summary.last("personal/val_loss")[0]
    assert found["vectorized"] == pytest.approx(found["sequential"], abs=1e-12)
    # By hand: one step of each client on all its examples, from the model that the run ended with.
    plain, data, total = Annealed().double(), run.data, 0.0
    plain.shift[0] = 6.0
    positions, sizes = data.client_test_indices(torch.arange(8))
    for client in range(8):
        nn.utils.vector_to_parameters(run.server.vector.clone(), plain.parameters())
        optimizer = plain.configure_optimizers()
        x, y = data.gather(data.client_indices(torch.tensor([client]))[0])
        optimizer.zero_grad()
        F.cross_entropy(plain(x[0]), y[0]).backward()
        optimizer.step()
        x, y = data.gather_test(positions[client : client + 1, : sizes[client]])
        total += F.cross_entropy(plain(x[0]), y[0], reduction="sum").item()
    assert found["sequential"] == pytest.approx(total / int(sizes.sum()), abs=1e-12)


class Swapped(Net):
    """Another object takes the place of one that recordings may know, in a round that is not compared."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)
        self.register_buffer("shift", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale + self.shift


class SwappedParameter(Swapped):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 4:
            self.scale = nn.Parameter(torch.full_like(self.scale, 3.0), requires_grad=False)


class SwappedBuffer(Swapped):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 4:
            self.shift = self.shift + torch.tensor([3.0, 0.0, 0.0, -3.0])


@pytest.mark.parametrize("kind", [SwappedParameter, SwappedBuffer])
def test_what_hooks_put_in_the_place_of_a_frozen_number_is_read(kind: type[Net], tmp_path: Path) -> None:
    vectors = []
    for number, options in enumerate(({"trace_steps": False}, {"trace_steps": True}, {"engine": "vectorized"})):
        torch.manual_seed(0)
        options = {"trace_steps": True, "max_rounds": 6, "precision": "64-true", **options}
        run = train([], tmp_path / str(number), kind(), equal_data(), participation=everyone(), **options)
        vectors.append(run.server.vector)
    for vector in vectors[1:]:
        torch.testing.assert_close(vector, vectors[0], rtol=0, atol=1e-12)


class Late(Net):
    """Holds a factor of its loss that is changed after the round's training, before fine-tuning."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.teachers = 1.0, [nn.Linear(1, 1)]

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return super().loss(logits, y) * self.factor * self.teachers[0].weight.detach().mean()


class After(Bystander):
    """Changes it, and what a list holds."""

    def on_server_step(self, round: Any) -> None:
        module = self.run.model.module
        module.factor = module.factor * 0.5
        module.teachers[0].weight.data.fill_(float(round.number))


@pytest.mark.parametrize("options", [{"trace_steps": True}, {"engine": "vectorized", "trace_steps": True}])
def test_fine_tuning_sees_what_changed_since_the_round_was_trained(options: Any, tmp_path: Path) -> None:
    found = []
    for number, others in enumerate(({"trace_steps": False}, options)):
        torch.manual_seed(0)
        module = Late()
        module.teachers[0].weight.data.fill_(1.0)
        evaluation = ClientEvaluation(every_n_rounds=1, fine_tune=[LocalPhase()])
        data = equal_data()
        run = train([After(), evaluation], tmp_path / str(number), module, data, max_rounds=3, **others)
        found.append((run.summary.last("personal/val_loss")[0], run.server.vector))
    assert found[1][0] == pytest.approx(found[0][0], abs=1e-12)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0, atol=1e-12)


COUNTED = {"steps": 0}


class Counting(Net):
    """Counts its steps outside of the module, and lets its loss depend on them."""

    taken = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        COUNTED["steps"] += 1
        type(self).taken += 1
        return super().training_step(batch, batch_idx) / (1 + COUNTED["steps"] + type(self).taken)


@pytest.mark.filterwarnings("ignore:Counting is trained one client at a time")
def test_steps_of_trials_and_of_fine_tuning_are_not_counted(tmp_path: Path) -> None:
    vectors = []
    for number, evaluations in enumerate(([], [ClientEvaluation(every_n_rounds=1, fine_tune=[LocalPhase()])])):
        torch.manual_seed(0)
        COUNTED["steps"], Counting.taken = 0, 0
        options = {"engine": "auto", "max_rounds": 2, "participation": everyone()}
        run = train(evaluations, tmp_path / str(number), Counting(), equal_data(), **options)
        assert (COUNTED["steps"], Counting.taken) == (2 * 8 * 3, 2 * 8 * 3)
        vectors.append(run.server.vector)
    assert torch.equal(*vectors)


class FrozenHead(Net):
    def on_train_epoch_start(self) -> None:
        self.layers[3].requires_grad_(self.current_epoch != 0)


@pytest.mark.parametrize("trace_steps", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_phase_of_which_all_is_frozen_changes_nothing(engine: str, trace_steps: bool, tmp_path: Path) -> None:
    """The head's phase, in the first round; fine-tuning in it likewise."""
    torch.manual_seed(0)
    module = FrozenHead()
    head = module.layers[3].weight.detach().clone().double()
    phases = [LocalPhase(["layers.3.*"], epochs=1), LocalPhase(["layers.1.*"], epochs=1)]
    evaluation = ClientEvaluation(every_n_rounds=1, fine_tune=phases[:1])
    options = {"engine": engine, "trace_steps": trace_steps, "local_phases": phases, "max_rounds": 1}
    run = train([evaluation], tmp_path, module, equal_data(), check_val_every_n_rounds=1, **options)
    assert torch.equal(module.layers[3].weight, head)
    assert run.summary.last("personal/val_loss")[0] == pytest.approx(run.summary.last("val_loss")[0], abs=1e-12)


class Reading(Net):
    """Reads the metric of a validation when it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[float] = []

    def on_validation_epoch_end(self) -> None:
        self.read.append(float(self.trainer.callback_metrics["val_loss"]))


class Noting(Bystander):
    def __init__(self) -> None:
        self.noted: list[float] = []

    def on_round_end(self, round: Any) -> None:
        self.noted.append(round.metrics["val_loss"])


def test_metrics_of_a_validation_are_there_when_it_ends(tmp_path: Path) -> None:
    module, noting = Reading(), Noting()
    train([noting], tmp_path, module, equal_data(), check_val_every_n_rounds=1)
    assert module.read == noting.noted
    assert len(set(module.read)) == 3


@pytest.mark.parametrize("buffers", ["average", "client", "server"])
def test_fine_tuned_models_have_their_own_statistics(buffers: Any, tmp_path: Path) -> None:
    """Unless clients leave them as they are: by hand, from the server's model, or from a client's own statistics."""
    torch.manual_seed(0)
    module = BatchNormed()
    data = equal_data(num_clients=3, batch_size=1000)
    tuning = ClientEvaluation(1, scopes=["fine_tuned"], fine_tune=[LocalPhase(epochs=5, lr=0.1)])
    run = train([tuning], tmp_path, module, data, max_rounds=1, participation=everyone(), buffers=buffers).run
    ids = torch.arange(3)
    statistics = run.client_buffers(ids)
    losses = []
    for client in range(3):
        torch.manual_seed(0)
        plain = BatchNormed().double()
        model = ClientModel(plain)
        model.load(run.server.vector.clone(), statistics[client], run.server.counters)
        indices, sizes = data.client_indices(ids[client : client + 1])
        batch = tuple(part[0] for part in data.gather(indices[:, : int(sizes[0])]))
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
        for step in range(5):
            optimizer.zero_grad()
            plain.training_step(batch, step).backward()
            optimizer.step()
        if buffers == "server":
            model.load_buffers(statistics[client], run.server.counters)
        indices, sizes = data.client_test_indices(ids[client : client + 1])
        x, y = (part[0] for part in data.gather_test(indices[:, : int(sizes[0])]))
        losses.append(F.cross_entropy(plain.eval()(x), y).item())
    mean, _ = run.summary.last("fine_tuned/val_loss/client_mean")
    assert mean == pytest.approx(sum(losses) / 3, abs=1e-12)
