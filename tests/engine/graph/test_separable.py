"""Which losses are means over examples: what is shown to be one is one, on batches of every kind."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from examples_alone import CLASSES, FEATURES, KEY, Loss, Task, batches, cross_entropy, is_mean, model_of
from torch import Tensor

from lfl.callbacks import Proximal
from lfl.client.model import ClientModel
from lfl.engine.graph.separable import why_not_a_mean, why_not_separable


def logged(value: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """Cross entropy, beside which a value is logged."""

    def loss(task: Task, x: Tensor, y: Tensor) -> Tensor:
        z = task(x)
        task.log("value", value(z, y))
        return F.cross_entropy(z, y)

    return loss


def of_logits(loss: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    return lambda task, x, y: loss(task(x), y)


def soft(y: Tensor) -> Tensor:
    return F.one_hot(y, CLASSES).double()


def focal(z: Tensor, y: Tensor) -> Tensor:
    logp = z.log_softmax(1).gather(1, y[:, None]).squeeze(1)
    return (-((1 - logp.exp()) ** 2) * logp).mean()


def smoothed_by_hand(z: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        target = torch.full_like(z, 0.1 / (CLASSES - 1))
        target.scatter_(1, y.unsqueeze(1), 0.9)
    return torch.mean(torch.sum(-target * z.log_softmax(dim=-1), dim=-1))


def top_k(z: Tensor, y: Tensor) -> Tensor:
    return (z.topk(3, dim=1).indices == y[:, None]).any(1).double().mean()


def penalised(task: Task, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(task(x), y)
    for parameter in task.parameters():
        loss = loss + 0.01 * parameter.square().sum() + 0.1 * torch.linalg.vector_norm(parameter)
    return loss


def added_in_place(task: Task, x: Tensor, y: Tensor) -> Tensor:
    total = torch.zeros((), dtype=x.dtype)
    total += F.cross_entropy(task(x), y)
    total += task(x).square().mean()
    total *= 0.5
    return total + sum([task(x).sum(), x.sum()]) / len(y)


def embedded(task: Task, x: Tensor, y: Tensor) -> Tensor:
    prototypes = task.net[2].weight  # one a class
    hidden = task.net[1](task.net[0](x))
    return torch.cdist(hidden, prototypes).gather(1, y[:, None]).mean() + (hidden - prototypes[y]).square().mean()


def contrastive_of_views(task: Task, x: Tensor, y: Tensor) -> Tensor:
    """Two views of the same example: no other example is seen."""
    return 1 - F.cosine_similarity(task(x), task(0.9 * x), dim=1).mean() + F.cross_entropy(task(x), y)


RISING = torch.linspace(1, 2, CLASSES).double()
MEANS: dict[str, Loss] = {
    "cross entropy": cross_entropy,
    "cross entropy of each": of_logits(lambda z, y: F.cross_entropy(z, y, reduction="none").mean()),
    "a sum, divided": of_logits(lambda z, y: F.cross_entropy(z, y, reduction="sum") / len(y)),
    "each divided": of_logits(lambda z, y: (F.cross_entropy(z, y, reduction="none") / y.shape[0]).sum()),
    "times a fraction": of_logits(lambda z, y: F.cross_entropy(z, y, reduction="sum") * (1 / y.numel())),
    "divided by a tensor": of_logits(lambda z, y: z.square().sum() / torch.tensor(float(z.numel()))),
    "smoothing": of_logits(lambda z, y: F.cross_entropy(z, y, label_smoothing=0.1)),
    "smoothing by hand": of_logits(smoothed_by_hand),
    "ignoring a class that no example has": of_logits(lambda z, y: F.cross_entropy(z, y, ignore_index=-1)),
    "soft targets": of_logits(lambda z, y: F.cross_entropy(z, 0.9 * soft(y) + 0.02)),
    "log likelihood": of_logits(lambda z, y: F.nll_loss(z.log_softmax(1), y)),
    "weights, added": of_logits(lambda z, y: F.cross_entropy(z, y, RISING, reduction="sum") / len(y)),
    "weights of each": lambda t, x, y: (t.scale[y] * F.cross_entropy(t(x), y, reduction="none")).mean(),
    "scaled logits": lambda t, x, y: F.cross_entropy(t(x) * t.scale, y),
    "focal": of_logits(focal),
    "picked by number": of_logits(lambda z, y: -z[torch.arange(len(y)), y].mean()),
    "squares": of_logits(lambda z, y: z.square().mean()),
    "mean squared error": of_logits(lambda z, y: F.mse_loss(z, soft(y))),
    "regression": of_logits(lambda z, y: F.mse_loss(z[:, :1].squeeze(1), y.double())),
    "absolute error": of_logits(lambda z, y: F.l1_loss(z, soft(y)) + F.smooth_l1_loss(z, soft(y))),
    "huber": of_logits(lambda z, y: F.huber_loss(z, soft(y)) + F.soft_margin_loss(z, 2 * soft(y) - 1)),
    "binary": of_logits(lambda z, y: F.binary_cross_entropy_with_logits(z, soft(y), pos_weight=RISING)),
    "binary probabilities": of_logits(lambda z, y: F.binary_cross_entropy(z.sigmoid(), soft(y))),
    "divergence, batchmean": of_logits(lambda z, y: F.kl_div(z.log_softmax(1), soft(y) + 0.1, reduction="batchmean")),
    "margins": of_logits(
        lambda z, y: F.multi_margin_loss(z, y) + F.multilabel_margin_loss(z, y[:, None].expand(-1, 5))
    ),
    "hinge of each": of_logits(
        lambda z, y: (1 - z.gather(1, y[:, None]) + z.amax(1, keepdim=True)).clamp(min=0).mean()
    ),
    "largest logit": of_logits(lambda z, y: z.logsumexp(1).mean() - z.max(1).values.mean() + z.std(1).mean()),
    "penalty": penalised,
    "in place": added_in_place,
    "prototypes": embedded,
    "two views": contrastive_of_views,
    "accuracy": logged(lambda z, y: (z.argmax(1) == y).float().mean()),
    "accuracy, counted": logged(lambda z, y: (z.argmax(1) == y).sum() / len(y)),
    "top 3": logged(top_k),
    "a constant": logged(lambda z, y: torch.tensor(0.5)),
}

REFUSED: dict[str, tuple[Loss, str]] = {
    "class weights": (
        of_logits(lambda z, y: F.cross_entropy(z, y, weight=RISING)),
        "class weights",
    ),
    "smoothed class weights": (
        of_logits(lambda z, y: F.cross_entropy(z, y, RISING, label_smoothing=0.1)),
        "depends on the data",
    ),
    "weighted mean by hand": (
        lambda t, x, y: (t.scale[y] * F.cross_entropy(t(x), y, reduction="none")).sum() / t.scale[y].sum(),
        "divides by a number that depends on the data (aten.div.Tensor, at test_separable.py:",
    ),
    "weights of the batch": (
        of_logits(lambda z, y: F.binary_cross_entropy(z.sigmoid(), soft(y), weight=soft(y).sum(0) / len(y))),
        "beside each example",
    ),
    "masked mean": (
        of_logits(lambda z, y: (F.cross_entropy(z, y, reduction="none") * (y > 0)).sum() / (y > 0).sum().clamp(min=1)),
        "divides by a number that depends on the data",
    ),
    "masked hits": (
        logged(lambda z, y: ((z.argmax(1) == y) & (y != 1)).sum() / (y != 1).sum()),
        "its logged value 'value' divides by a number that depends on the data",
    ),
    "a mask": (of_logits(lambda z, y: z[y == y.max()].mean()), "ondition on the data"),
    "contrastive": (of_logits(lambda z, y: (z @ z.T).square().mean()), "compares examples"),
    "contrast with a second view": (
        lambda t, x, y: F.cross_entropy(F.normalize(t(x)) @ F.normalize(t(0.9 * x)).T, torch.arange(len(x))),
        "compares examples",
    ),
    "supervised contrastive": (
        of_logits(lambda z, y: ((z[:, None] - z[None]).square().sum(2) * (y[:, None] == y[None])).mean()),
        "beside other examples",
    ),
    "hard triplets": (of_logits(lambda z, y: torch.cdist(z, z).amax(1).mean()), "compares examples"),
    "standardised": (
        lambda t, x, y: F.cross_entropy(t(x / (1 + x.amax(0))), y),
        "across the examples",
    ),
    "centred": (lambda t, x, y: F.cross_entropy(t(x - x.mean(0)), y), "beside each example"),
    "largest of the batch": (
        of_logits(lambda z, y: F.cross_entropy(z, y, reduction="none").max()),
        "across the examples",
    ),
    "softmax over the batch": (of_logits(lambda z, y: z.softmax(0)[:, 0].square().mean()), "across the examples"),
    "sorted": (of_logits(lambda z, y: (z.sort(0).values * z.detach()).mean()), "across the examples"),
    "running sums": (of_logits(lambda z, y: z.cumsum(0).square().mean()), "across the examples"),
    "correlation": (
        of_logits(lambda z, y: z.square().sum() - z[:, 0].mean() * z[:, 1].mean()),
        "not linear",
    ),
    "squared": (of_logits(lambda z, y: F.cross_entropy(z, y) ** 2), "not linear"),
    "root of the mean": (of_logits(lambda z, y: F.mse_loss(z, soft(y)).sqrt()), "not linear"),
    "a sum": (of_logits(lambda z, y: F.cross_entropy(z, y, reduction="sum")), "its loss is a sum"),
    "a number written down": (of_logits(lambda z, y: F.cross_entropy(z, y, reduction="sum") / 7), "its loss is a sum"),
    "one less": (of_logits(lambda z, y: z.square().sum() / (len(z) + 1)), "number of examples"),
    "a root of the number": (of_logits(lambda z, y: F.cross_entropy(z, y) * len(y) ** 0.5), "number of examples"),
    "weights by place": (
        of_logits(lambda z, y: (torch.arange(len(y)) * F.cross_entropy(z, y, reduction="none")).mean()),
        "places of the examples",
    ),
    "the first": (of_logits(lambda z, y: z[0].square().mean()), "place in the batch"),
    "neighbours": (of_logits(lambda z, y: (z[1:] - z[:-1]).square().sum() / len(z)), ""),
    "mixed up": (of_logits(lambda z, y: (0.5 * z + 0.5 * z.flip(0)).square().mean()), "place in the batch"),
    "broadcast by mistake": (
        of_logits(lambda z, y: (z[:, :1] - y).square().mean()),
        "examples",
    ),
    "parts": (of_logits(lambda z, y: z.reshape(CLASSES, -1).logsumexp(1).mean()), "into parts"),
    "random": (of_logits(lambda z, y: (z * torch.rand_like(z)).mean()), "random numbers"),
    "a number of distinct classes": (logged(lambda z, y: soft(y).amax(0).sum()), "across the examples"),
    "another branch for one": (
        of_logits(lambda z, y: z.square().mean() * (2 if len(z) == 1 else 1)),
        "single examples",
    ),
    "a branch for few": (of_logits(lambda z, y: z.square().mean() if len(z) < 4 else z.mean()), "other operations"),
}


@pytest.mark.parametrize("name", MEANS)
def test_means_are_shown_and_are_means(name: str) -> None:
    model = model_of(MEANS[name])
    for batch in batches((FEATURES,)):
        assert why_not_separable(model, batch, KEY) is None
        assert is_mean(model, batch)


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_whatever_the_batch_and_are_none(name: str) -> None:
    loss, gist = REFUSED[name]
    model = model_of(loss)
    for batch in batches((FEATURES,)):
        reason = why_not_separable(model, batch, KEY)
        assert reason is not None
        assert gist in reason
    if name != "random":
        assert not all(is_mean(model, batch) for batch in batches((FEATURES,)))


@pytest.mark.parametrize("count", [1, 2])
def test_a_batch_may_be_small(count: int) -> None:
    """Its examples are repeated."""
    batch = tuple(part[:count] for part in batches((FEATURES,))[0])
    assert why_not_separable(model_of(cross_entropy), batch, KEY) is None
    reason = why_not_separable(model_of(REFUSED["class weights"][0]), batch, KEY)
    assert reason is not None
    assert "class weights" in reason


def test_terms_of_callbacks_are_seen() -> None:
    def spread(client: Any, loss: Tensor) -> Tensor:
        return loss + client.call(client.batch[0]).var()

    for term, gist in ((Proximal(0.1).client_loss, None), (spread, "across the examples")):
        model = ClientModel(Task(cross_entropy).double(), loss_terms=(term,))
        reason = why_not_separable(model, batches((FEATURES,))[0], KEY)
        assert reason is None if gist is None else gist in str(reason)


def test_neither_batch_nor_module_is_changed() -> None:
    """Not by a step that writes into its batch either."""
    model = model_of(lambda task, x, y: F.cross_entropy(task(x.mul_(2)), y))
    batch = batches((FEATURES,))[0]
    before = copy.deepcopy((batch, model.module.state_dict()))
    assert why_not_separable(model, batch, KEY) is None
    assert torch.equal(batch[0], before[0][0])
    assert all(torch.equal(value, before[1][name]) for name, value in model.module.state_dict().items())
    assert "log" not in vars(model.module)


def test_a_batch_is_any_nest_whose_parts_are_equally_long() -> None:
    def step(params: Tensor, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"its loss": (batch["a"] * params * batch["b"]).mean()}

    params = torch.ones(1)
    assert why_not_a_mean(step, params, {"a": torch.ones(4), "b": torch.ones(4)}) is None
    reason = why_not_a_mean(step, params, {"a": torch.ones(4), "b": torch.ones(1)})
    assert reason == "the parts of its batch differ in length"


def test_the_gradient_is_that_mean_too() -> None:
    """A gradient that is normalised over the batch belongs to a loss that is a mean."""
    model = model_of(lambda task, x, y: F.cross_entropy(Normalised.apply(task(x)), y))
    batch = batches((FEATURES,))[0]
    assert not is_mean(model, batch)
    assert (
        why_not_separable(model, batch, KEY) == "its loss has a gradient that is not torch's own (NormalisedBackward)"
    )


class Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient / gradient.norm()
