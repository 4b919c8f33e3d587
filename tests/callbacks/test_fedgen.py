"""FedGen: a round followed by hand, what it draws and sends, and what it leaves alone."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from worlds import Bystander, cnn, equal_data, mlp, train

from lfl.callbacks import FedGen, SharpnessAware, TopK
from lfl.callbacks.fedgen import diversity_loss, ensemble_loss
from lfl.data import ClassesPerClientPartitioner, Digits, FederatedDataModule
from lfl.models import MLP, Classifier
from lfl.participation import FixedParticipation
from lfl.randomness import fold, uniform

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorized"])
# MLP 64-12-4, of which the head is 12-4; a generator 5-6-12, and the statistics of its hidden layer.
D, CLASSES, NOISE, HIDDEN, FEATURES = 832, 4, 5, 6, 12
G = (NOISE + CLASSES) * HIDDEN + HIDDEN + 2 * HIDDEN + HIDDEN * FEATURES + FEATURES
SMALL: dict[str, Any] = {"noise": NOISE, "hidden": HIDDEN, "batch_size": 8, "server_steps": 3}


class Look(Bystander):
    """Behind FedGen: what was sent, what clients trained on and became, by round."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Tensor]] = []
        self.rows: list[dict[str, Tensor]] = []
        self.params: dict[tuple[int, int], Tensor] = {}
        self.batches: list[Any] = []
        self.losses: list[float] = []

    def on_download(self, message: Any) -> None:
        self.sent.append({name: value.clone() for name, value in message.payloads.items()})

    def wrap_gradient(self, cohort: Any, gradient: Any) -> Any:
        def seen(params: Tensor, step: Any) -> Tensor:
            found = gradient(params, step)
            self.rows.append({name: rows.clone() for name, rows in cohort.loss_rows.items()})
            self.batches.append(step.batches[0].batch)
            return found

        return seen

    def on_round_end(self, round: Any) -> None:
        self.losses.append(float(round.metrics["fedgen/generator_loss"]))

    def on_cohort_end(self, cohort: Any) -> None:
        for client, row in zip(cohort.ids.tolist(), cohort.params, strict=True):
            self.params[cohort.round.number, client] = row.clone()


@ENGINES
def test_without_weights_it_is_fedavg_to_the_bit(engine: str, tmp_path: Path) -> None:
    runs = [
        train(stack, tmp_path, cnn(dropout=0.3), engine=engine)
        for stack in ([], [FedGen("head", weight=0.0, distillation=0.0)])
    ]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)
    assert runs[0].ledger.metrics() == runs[1].ledger.metrics()
    assert not runs[1].store.is_used


@ENGINES
def test_the_first_round_is_fedavgs(engine: str, tmp_path: Path) -> None:
    options = {"engine": engine, "max_rounds": 1}
    runs = [train(stack, tmp_path, cnn(), equal_data(), **options) for stack in ([], [FedGen(**SMALL)])]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)


def label_counts(trainer: Any, clients: list[int]) -> Tensor:
    indices, sizes = trainer.data.client_indices(torch.tensor(clients))
    labels = [trainer.data.gather(row[None, :size])[1][0] for row, size in zip(indices, sizes.tolist(), strict=True)]
    return torch.stack([torch.bincount(own, minlength=CLASSES) for own in labels])


def head_of(params: Tensor) -> tuple[Tensor, Tensor]:
    return params[-52:-4].reshape(CLASSES, FEATURES), params[-4:]


def generated(parts: list[Tensor], noise: Tensor, labels: Tensor, is_training: bool) -> Tensor:
    """The generator, written out."""
    weight, bias, scale, shift, mean, var, out_weight, out_bias = parts
    hidden = torch.cat([noise, one_hot(labels, CLASSES).double()], dim=1) @ weight.T + bias
    if is_training:
        mean, var = hidden.mean(dim=0), hidden.var(dim=0, unbiased=False)
    hidden = (hidden - mean) / (var + 1e-5).sqrt() * scale + shift
    return hidden.relu() @ out_weight.T + out_bias


def parts_of(flat: Tensor) -> list[Tensor]:
    shapes = [(HIDDEN, NOISE + CLASSES), *[(HIDDEN,)] * 5, (FEATURES, HIDDEN), (FEATURES,)]
    pieces = flat.split([math.prod(shape) for shape in shapes])
    return [piece.reshape(shape).clone() for piece, shape in zip(pieces, shapes, strict=True)]


@ENGINES
def test_the_servers_round_by_hand(engine: str, tmp_path: Path) -> None:
    """Loss and ensemble weights of one generator step, Adam's first move, and the bytes of two rounds."""
    look, clients = Look(), [0, 2]
    options = {"participation": FixedParticipation([clients]), "max_rounds": 2, "engine": engine}
    trainer = train([FedGen(**{**SMALL, "server_steps": 1}), look], tmp_path, mlp(), **options)

    counts = label_counts(trainer, clients)
    held = [c for c in range(CLASSES) if counts[:, c].sum() > 0]
    draws = trainer.run.generator("fedgen", 1)
    places = torch.rand(1, 8, dtype=torch.float64, generator=draws)[0]
    labels = torch.tensor([held[int(place * len(held))] for place in places])
    noise = torch.rand(8, NOISE, generator=draws).double()
    parts = parts_of(look.sent[0]["generator"])
    trained = [part.requires_grad_() for part in (*parts[:4], *parts[6:])]
    z = generated(parts, noise, labels, is_training=True)
    loss = torch.zeros((), dtype=torch.float64)
    for b, label in enumerate(labels.tolist()):
        for row, client in enumerate(clients):
            weight, bias = head_of(look.params[1, client])
            share = counts[row, label] / counts[:, label].sum()
            loss = loss + share * cross_entropy((weight @ z[b] + bias)[None], labels[b : b + 1]) / 8
    pairs = [(z[a] - z[b]).abs().mean() * (noise[a] - noise[b]).square().mean() for a in range(8) for b in range(8)]
    loss = loss + torch.exp(-torch.stack(pairs).mean())
    assert look.losses[0] == pytest.approx(float(loss.detach()), abs=1e-12)

    gradients = torch.autograd.grad(loss, trained)
    after = parts_of(look.sent[1]["generator"])
    for before, g, found in zip(trained, gradients, (*after[:4], *after[6:]), strict=True):
        g = g + 1e-2 * before.detach()
        torch.testing.assert_close(found, before.detach() - 3e-4 * g / (g.abs() + 1e-8), rtol=0, atol=1e-11)
    assert torch.equal(look.sent[0]["label_counts"], torch.zeros(CLASSES).double())
    assert torch.equal(look.sent[1]["label_counts"], counts.sum(dim=0).double())

    down = D + G + 2 * HIDDEN + CLASSES  # the generator every round, with its statistics
    assert trainer.ledger.totals["down"] == 2 * 2 * down * 64
    assert trainer.ledger.totals["up"] == 2 * 2 * D * 64 + 2 * CLASSES * 32  # label counts once


@ENGINES
def test_a_clients_step_by_hand(engine: str, tmp_path: Path) -> None:
    """The second round's only step: loss + A CE(head(z), y) + B KL(head(z') || logits), A = 2 * 0.5 and B = 3 * 0.5."""
    look = Look()
    term = FedGen(**SMALL, weight=2.0, distillation=3.0, decay=0.5)
    options = {"participation": FixedParticipation([[2]]), "max_rounds": 2, "local_steps": 1, "engine": engine}
    trainer = train([term, look], tmp_path, mlp(), **options)
    (first, rows), (_, batch), sent = look.rows, look.batches, look.sent[1]
    assert first == {}

    # Features of 8 classes drawn uniformly from those that are known, and of each class once.
    held = sent["label_counts"].nonzero().flatten()
    key = fold(fold(trainer.run.keys(torch.tensor([2]), "fedgen", 2), 0), 0)
    places = uniform(fold(key, 0), 8, torch.float64)[0]
    y = held[(places * len(held)).long()]
    assert torch.equal(rows["fedgen/drawn"][0], y)
    noise = uniform(fold(key, 1), 12 * NOISE, torch.float64).reshape(12, NOISE)
    z = generated(parts_of(sent["generator"]), noise, torch.cat([y, torch.arange(CLASSES)]), is_training=False)
    torch.testing.assert_close(rows["fedgen/features"][0], z, rtol=0, atol=1e-13)

    start = sent["model"].clone().requires_grad_()
    model = mlp().double()
    names = [name for name, _ in model.named_parameters()]
    named = dict(zip(names, trainer.layout.views(start).values(), strict=True))
    x, labels = (part[0] for part in batch)
    logits = torch.func.functional_call(model, named, (x,))
    weight, bias = head_of(start)
    on_z = z @ weight.T + bias
    p = on_z[8:].detach().softmax(dim=1)[labels]
    divergence = (p * (p.log() - logits.log_softmax(dim=1))).sum(dim=1).mean()
    loss = cross_entropy(logits, labels) + 1.0 * cross_entropy(on_z[:8], y) + 1.5 * divergence
    (gradient,) = torch.autograd.grad(loss, start)
    moved = look.params[2, 2] - sent["model"]
    torch.testing.assert_close(moved, -0.1 * gradient, rtol=0, atol=1e-14)
    assert trainer.summary.last("train/loss")[0] == pytest.approx(float(loss.detach()), abs=1e-12)


def test_the_two_ensembles_by_hand() -> None:
    """Two clients, of 3 and 1 examples of class 0, and of 0 and 4 of class 1; class 2 is nobody's."""
    counts = torch.tensor([[3.0, 0.0, 0.0], [1.0, 4.0, 0.0]])
    logits = torch.tensor([[[2.0, 0.0, 0.0], [9.0, 9.0, 9.0]], [[0.0, 1.0, 0.0], [0.0, 1.0, 2.0]]])
    labels = torch.tensor([0, 1])
    first = math.log(1 + 2 * math.exp(-2)), math.log(2 + math.e)
    second = math.log(1 + math.e + math.exp(2)) - 1
    expected = (0.75 * first[0] + 0.25 * first[1] + second) / 2
    assert float(ensemble_loss(logits, labels, counts)) == pytest.approx(expected, abs=1e-6)
    mixed = torch.tensor([[3 / 8 * 2, 5 / 8, 0.0], [27 / 8, 27 / 8 + 5 / 8, 27 / 8 + 10 / 8]])
    assert float(ensemble_loss(logits, labels, counts, "logits")) == pytest.approx(float(cross_entropy(mixed, labels)))


def test_diversity_by_hand() -> None:
    """Two features 4 apart in the mean of two dimensions, two noises 1 apart in the mean: exp(-(0 + 4 + 4 + 0) / 4)."""
    features, noise = torch.tensor([[0.0, 0.0], [6.0, 2.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    assert float(diversity_loss(features, noise)) == pytest.approx(math.exp(-2))


def test_presets() -> None:
    """PFLlib's defaults, and the official code's; what is given goes before both."""
    official, pfllib = FedGen()._settings, FedGen(preset="pfllib", hidden=7)._settings
    assert (official.weight, official.distillation, official.decay) == (10.0, 10.0, 0.98)
    assert (official.server_steps, official.lr, official.weight_decay, official.diversity) == (50, 3e-4, 1e-2, 1.0)
    assert (official.noise, official.hidden, official.ensemble, official.labels) == (32, 256, "losses", "uniform")
    assert (pfllib.weight, pfllib.distillation, pfllib.decay, pfllib.diversity) == (1.0, 0.0, 1.0, 0.0)
    assert (pfllib.server_steps, pfllib.lr, pfllib.weight_decay) == (1000, 5e-3, 0.0)
    assert (pfllib.noise, pfllib.hidden, pfllib.ensemble, pfllib.labels) == (512, 7, "logits", "frequency")


@pytest.mark.parametrize("preset", ["official", "pfllib"])
def test_a_hundred_clients_of_two_classes_touch_no_class_that_nobody_has(preset: str, tmp_path: Path) -> None:
    """Two of them in round 1: in round 2 classes of theirs alone are drawn, and every number is finite."""
    look = Look()
    data = FederatedDataModule(Digits(), ClassesPerClientPartitioner(2), num_clients=100, batch_size=5)
    torch.manual_seed(0)
    module = Classifier(MLP(in_features=64, hidden=[12]), lr=0.1)
    options = {"participation": FixedParticipation([[0, 99], [5, 40, 77]]), "max_rounds": 2, "engine": "vectorized"}
    trainer = train([FedGen(preset=preset, server_steps=3), look], tmp_path, module, data, **options)
    known = look.sent[1]["label_counts"].nonzero().flatten()
    assert 2 <= len(known) <= 4
    drawn = torch.cat([rows["fedgen/drawn"].flatten() for rows in look.rows if rows])
    assert set(drawn.tolist()) == set(known.tolist())
    assert bool(trainer.server.vector.isfinite().all())
    assert all(math.isfinite(loss) for loss in look.losses)


def test_the_generator_learns_what_heads_know(tmp_path: Path) -> None:
    losses = []
    for steps in (1, 20, 200):
        look = Look()
        settings = {**SMALL, "server_steps": steps, "batch_size": 32}
        term = FedGen(**settings, lr=1e-2, weight_decay=0.0, diversity=0.0)
        train([term, look], tmp_path, mlp(), max_rounds=1, local_epochs=5)
        losses += look.losses
    assert losses[0] > 1.5 * losses[1] > 1.5 * 1.5 * losses[2] > 0


def test_both_passes_of_sam_see_the_same_features(tmp_path: Path) -> None:
    look = Look()
    train([look, SharpnessAware(0.1), FedGen(**SMALL)], tmp_path, mlp(), max_rounds=2, local_steps=2)
    seen = [rows["fedgen/features"] for rows in look.rows if rows]
    assert len(seen) == 2 * 2 * 5  # passes, steps, clients
    assert all(torch.equal(a, b) for a, b in zip(seen[::2], seen[1::2], strict=True))
    assert not torch.equal(seen[0], seen[2])


@ENGINES
def test_recorded_steps_are_the_same(engine: str, tmp_path: Path) -> None:
    """Over rounds, in which the weights decay."""
    runs = [
        train([FedGen(**SMALL)], tmp_path, mlp(), equal_data(), engine=engine, trace_steps=trace)
        for trace in (False, True)
    ]
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-12)


def test_padded_batches_give_the_same(tmp_path: Path) -> None:
    padded, alone = (
        train([FedGen(**SMALL)], tmp_path, mlp(), engine=engine, local_epochs=2)
        for engine in ("vectorized", "sequential")
    )
    assert padded.run.engine.padded_width == 5
    torch.testing.assert_close(padded.server.vector, alone.server.vector, rtol=0, atol=1e-12)


class Bare(nn.Module):
    """A head without a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def with_head(head: nn.Module) -> Classifier:
    torch.manual_seed(0)
    backbone = MLP(in_features=64, hidden=[4], num_classes=4)
    backbone.head = head
    return Classifier(backbone, lr=0.1)


def test_what_it_needs_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`head=backbone.hed` of FedGen names no submodule of Classifier; near it"):
        train([FedGen("backbone.hed")], tmp_path, mlp())
    with pytest.raises(ValueError, match="has no linear layer: say its number of inputs as `num_features`"):
        train([FedGen()], tmp_path, with_head(Bare()))
    with pytest.raises(ValueError, match=r"`head=backbone.head` of FedGen has buffers"):
        train([FedGen()], tmp_path, with_head(nn.BatchNorm1d(4)), participation=FixedParticipation([[0]]))
    with pytest.raises(ValueError, match=r"`head=backbone.head` of FedGen must have parameters"):
        train([FedGen()], tmp_path, with_head(nn.Identity()))
    with pytest.raises(ValueError, match="needs the head of each client as it is, which TopK does not send"):
        train([FedGen(), TopK(0.1)], tmp_path, mlp())
    with pytest.raises(ValueError, match="`target=0` of FedGen must be class labels"):
        train([FedGen(target=0)], tmp_path, mlp())
    trainer = train([FedGen(num_features=4, **SMALL)], tmp_path, with_head(Bare()))
    assert bool(trainer.server.vector.isfinite().all())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"weight": -1.0}, "weight=-1.0"),
        ({"batch_size": 1}, "batch_size=1"),  # BatchNorm has no variance of one
        ({"preset": "paper"}, "preset=paper"),
        ({"ensemble": "mean"}, "ensemble=mean"),
        ({"labels": "all"}, "labels=all"),
    ],
)
def test_refused_values(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FedGen(**options)
