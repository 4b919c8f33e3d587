"""FedGen: the server learns to make features of each class, on which clients train their heads as well.

Z. Zhu, J. Hong, J. Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021,
https://arxiv.org/abs/2105.10056; official code github.com/zhuangdizhu/FedGen, another one in PFLlib.
"""

import copy
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy
from typing_extensions import override

from lfl.arguments import check_choice, check_number
from lfl.callback import FederatedCallback, Gradient, overrides, submodule_of
from lfl.callbacks.labels import check_labels, check_logits, labels_of, read_labels
from lfl.client.layout import ParameterLayout
from lfl.client.step import ClientStep, LocalStep
from lfl.comm import Message
from lfl.federation import Federation
from lfl.generators import HostGenerators
from lfl.models.feature_generator import FeatureGenerator
from lfl.randomness import fold, uniform
from lfl.round import Cohort, Round

_SLOT = "fedgen/label_counts"  # those of the clients that have sent them [classes]
_GENERATOR, _COUNTS = "generator", "label_counts"  # payloads; counts travel up, and their sum travels down
_NEW = "fedgen/new"  # 1 for clients that have not sent them, 0 for the others [C]
_HEADS, _HELD = "fedgen/heads", "fedgen/held"  # sums over clients, each in its own row: [M, H] and [M, classes]
_FEATURES, _DRAWN, _STRENGTHS = "fedgen/features", "fedgen/drawn", "fedgen/strengths"  # rows for the loss
_CHUNK = 256  # examples of a client whose labels are read at a time


@dataclass(frozen=True)
class _Settings:
    """The values in which the two public codes differ: the official one's, and PFLlib's below. See ``FedGen``."""

    weight: float = 10.0
    distillation: float = 10.0
    decay: float = 0.98
    batch_size: int = 32
    noise: int = 32
    hidden: int = 256
    server_steps: int = 50
    lr: float = 3e-4
    weight_decay: float = 1e-2
    diversity: float = 1.0
    ensemble: str = "losses"
    labels: str = "uniform"


_PRESETS = {
    "official": _Settings(),
    "pfllib": _Settings(1.0, 0.0, 1.0, 10, 512, 512, 1000, 5e-3, 0.0, 0.0, "logits", "frequency"),
}


class FedGen(FederatedCallback):
    """Clients add what their heads make of generated features; the server trains the generator on their heads.

    A client's loss in round t is ``loss + decay^(t-1) (weight CE(head(z), y) + distillation KL(head(z') || logits))``.
    Classes y are drawn for each step from those that the server knows to be held by somebody, z are the generator's
    features of them; z' is one more feature of each class, the same for all examples of the class in the step, and the
    divergence a mean over the batch, in which head(z') has no gradient. As long as nobody has reported, the loss is as
    it was.

    The server, when the round's heads have arrived, takes steps of Adam on ``sum_i a_i(y) CE(head_i(z), y) + diversity
    D``, the mean over classes y that the participants hold, drawn for each step. a_i(y) is client i's share of their
    examples of class y, and ``D = exp(-mean_ab |z_a - z_b|_1 |e_a - e_b|_2^2)``, norms as means over dimensions, of
    features z and the noise e they are made of, uniform in [0, 1).

    State: the generator and its Adam, the sum of label counts; of every client seen its label counts. Wire: down the
    generator, with the statistics of its BatchNorm, and the sum of label counts; up a client's label counts, once, as
    integers of 32 bits. With ``weight`` and ``distillation`` 0 it is the stack without it, bit for bit.

    Args:
        head: name of the submodule from features [b, d] to logits; what it gives in a step are the logits of the batch.
        target: the part of a batch that is the class labels [b]: a place in a tuple, a key of a dict, or a path of such
            with dots.
        num_features: d; none for the number of inputs of the head's first linear layer.
        preset: the code whose values the following arguments have where they are none.
        weight: of the cross entropy on generated features; 10, in PFLlib 1.
        distillation: weight of the divergence; 10, in PFLlib 0.
        decay: factor of both weights from round to round; 0.98, in PFLlib 1.
        batch_size: generated features of a step, on clients and server; 32, in PFLlib that of the data, here 10.
        noise: numbers of noise of a feature; 32, in PFLlib 512.
        hidden: width of the generator's hidden layer; 256, in PFLlib 512.
        server_steps: steps of the generator in a round; 50, in PFLlib 1000.
        lr: learning rate of the generator; 0.0003, in PFLlib 0.005.
        weight_decay: weight decay of the generator; 0.01, in PFLlib 0.
        diversity: weight of D; 1, in PFLlib 0.
        ensemble: ``losses`` is the above; ``logits``, in PFLlib, the cross entropy of the clients' mean
            logits, weighted by their numbers of examples.
        labels: how classes are drawn: ``uniform``, or in PFLlib by ``frequency``, the number of their examples.

    Raises:
        ValueError: an argument is not among the allowed values.
    """

    is_unique = True
    sends_more = True

    def __init__(
        self,
        head: str = "backbone.head",
        target: str | int = 1,
        num_features: PositiveInt | None = None,
        preset: Literal["official", "pfllib"] = "official",
        weight: NonNegativeFloat | None = None,
        distillation: NonNegativeFloat | None = None,
        decay: PositiveFloat | None = None,
        batch_size: PositiveInt | None = None,
        noise: PositiveInt | None = None,
        hidden: PositiveInt | None = None,
        server_steps: PositiveInt | None = None,
        lr: PositiveFloat | None = None,
        weight_decay: NonNegativeFloat | None = None,
        diversity: NonNegativeFloat | None = None,
        ensemble: Literal["losses", "logits"] | None = None,
        labels: Literal["uniform", "frequency"] | None = None,
    ) -> None:
        check_choice("FedGen", "preset", preset, tuple(_PRESETS))
        self.head = head
        self.target = target
        self.num_features = num_features
        self.preset = preset
        self.weight = weight
        self.distillation = distillation
        self.decay = decay
        self.batch_size = batch_size
        self.noise = noise
        self.hidden = hidden
        self.server_steps = server_steps
        self.lr = lr
        self.weight_decay = weight_decay
        self.diversity = diversity
        self.ensemble = ensemble
        self.labels = labels
        given = {f.name: getattr(self, f.name) for f in fields(_Settings) if getattr(self, f.name) is not None}
        self._settings = _checked(replace(_PRESETS[preset], **given))
        self._is_off = not self._settings.weight and not self._settings.distillation
        self.features = () if self._is_off else (head,)
        self.label_counts = torch.empty(0)

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        codec = next((type(c).__name__ for c in stack if overrides(c, "encode")), None)
        if codec is not None and not self._is_off:
            raise ValueError(f"FedGen's server needs the head of each client as it is, which {codec} does not send.")

    @override
    def on_run_start(self, federation: Federation) -> None:
        if self._is_off:
            return
        self._federation = federation
        num_classes = federation.data.num_classes
        if num_classes < 2:
            raise ValueError(f"FedGen makes features of classes, and `num_classes={num_classes}` of the data has none.")
        check_labels("FedGen", federation.data, self.target, federation.seed)
        head = submodule_of(federation.model.module, self.head, "FedGen", "head")
        self._heads = _Heads(self.head, head, federation.layout)
        num_features = self.num_features or _inputs_of(head, self.head)
        dtype, device = federation.layout.dtype, federation.device
        settings = self._settings
        host = HostGenerators()
        with host.kept():
            host.seed(federation.seed, "fedgen")  # torch draws initial weights from its global generator
            generator = FeatureGenerator(num_classes, num_features, settings.noise, settings.hidden)
        self._generator = generator.to(device, dtype)
        self._sampler = copy.deepcopy(self._generator).eval()  # the clients', of which only the form is used
        parameters = self._generator.parameters()
        self._optimizer = torch.optim.Adam(parameters, settings.lr, weight_decay=settings.weight_decay)
        self.label_counts = torch.zeros(num_classes, dtype=dtype, device=device)
        federation.store.declare(_SLOT, num_classes, torch.int32)

    # -- the clients --------------------------------------------------------------------------------------------------

    @override
    def on_download(self, message: Message) -> None:
        if not self._is_off:
            message.add(_GENERATOR, torch.cat([t.detach().flatten() for t in _numbers_of(self._generator).values()]))
            message.add(_COUNTS, self.label_counts)

    @override
    def on_cohort_start(self, cohort: Cohort) -> None:
        if self._is_off:
            return
        store = self._federation.store
        is_new = ~store.has_rows(_SLOT, cohort.ids)
        counts = store.gather(_SLOT, cohort.ids)
        if bool(is_new.any()):
            counts[is_new.to(counts.device)] = self._counted(cohort.ids[is_new]).to(counts)
        cohort.rows[_SLOT] = counts
        cohort.rows[_NEW] = is_new.to(counts)
        # Once a cohort: the first round has nothing to draw from.
        if bool(cohort.received[_COUNTS].any()):
            size, num_classes = self._settings.batch_size, counts.shape[1]
            zeros = cohort.values.new_zeros(len(cohort), size + num_classes, self._generator.output.out_features)
            cohort.loss_rows[_FEATURES] = zeros
            cohort.loss_rows[_DRAWN] = cohort.ids.new_zeros(len(cohort), size).to(zeros.device)
            decay = self._settings.decay ** (cohort.round.number - 1)
            # Rows and no numbers in the loss, where a recorded step would keep those of its round.
            strengths = decay * zeros.new_tensor([self._settings.weight, self._settings.distillation])
            cohort.loss_rows[_STRENGTHS] = strengths.repeat(len(cohort), 1)

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        if _FEATURES not in cohort.loss_rows:
            return gradient
        settings, features, drawn = self._settings, cohort.loss_rows[_FEATURES], cohort.loss_rows[_DRAWN]
        num_classes = features.shape[1] - settings.batch_size
        parts = _split(cohort.received[_GENERATOR], self._sampler)
        cumulative = _cumulative(cohort.received[_COUNTS], settings.labels)
        keys = self._federation.keys(cohort.ids, "fedgen", cohort.round.number)
        classes = torch.arange(num_classes, device=features.device)

        def with_generated(params: Tensor, step: LocalStep) -> Tensor:
            # By the step: another pass of it (SAM) sees the same features.
            step_keys = fold(fold(keys[: len(params)], step.phase), step.number)
            labels = _draw(cumulative, uniform(fold(step_keys, 0), settings.batch_size, torch.float64))
            all_labels = torch.cat([labels, classes.expand(len(params), -1)], dim=1)
            noise = uniform(fold(step_keys, 1), all_labels.shape[1] * settings.noise, features.dtype)
            inputs = noise.reshape(-1, settings.noise), all_labels.flatten()
            with torch.no_grad():
                made = functional_call(self._sampler, parts, inputs)
            # In place: the terms of the loss see these rows, of those clients that have finished as they were.
            features[: len(params)] = made.unflatten(0, all_labels.shape)
            drawn[: len(params)] = labels
            return gradient(params, step)

        return with_generated

    @override
    def client_loss(self, client: ClientStep, loss: Tensor) -> Tensor:
        if _FEATURES not in client.rows:
            return loss
        labels, strengths = client.rows[_DRAWN], client.rows[_STRENGTHS]
        logits = client.call(client.rows[_FEATURES], part=self.head)
        check_logits("FedGen", "head", self.head, logits, len(self.label_counts))
        on_drawn, of_classes = logits[: len(labels)], logits[len(labels) :]
        entropy = cross_entropy(on_drawn, labels)
        client.log("fedgen/cross_entropy", entropy)
        loss = loss + strengths[0] * entropy
        if self._settings.distillation:
            teacher = of_classes.detach().log_softmax(dim=1)[labels_of(client.batch, self.target)]
            own = client.features[self.head].log_softmax(dim=1)
            loss = loss + strengths[1] * (teacher.exp() * (teacher - own)).sum(dim=1).mean()
        return loss

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        if self._is_off:
            return
        counts, is_new = cohort.rows[_SLOT], cohort.rows[_NEW]
        self._federation.store.scatter(_SLOT, cohort.ids, counts)
        cohort.upload(_COUNTS, counts * is_new[:, None], bits=32 * counts.shape[1] * is_new.long().cpu())
        # What the server knows of each client, by its updates and by counts sent now or earlier.
        _put(cohort, _HEADS, cohort.params[:, self._heads.columns])
        _put(cohort, _HELD, counts)

    def _counted(self, ids: Tensor) -> Tensor:
        """Label counts [C, classes] of clients ``ids`` [C], over all their training examples."""
        data = self._federation.data
        indices, sizes = data.client_indices(ids)
        counts = torch.zeros(len(ids), data.num_classes, dtype=torch.int64)
        for start in range(0, indices.shape[1], _CHUNK):
            chunk = indices[:, start : start + _CHUNK]
            labels = read_labels(data, chunk, self.target, self._federation.seed).cpu()
            counts.scatter_add_(1, labels, (start + torch.arange(chunk.shape[1]) < sizes[:, None]).long())
        return counts

    # -- the server ---------------------------------------------------------------------------------------------------

    @override
    def on_server_step(self, round: Round) -> None:
        if self._is_off or not round.num_reported:
            return
        self.label_counts = self.label_counts + round.received[_COUNTS].to(self.label_counts)
        heads = round.sums[_HEADS].to(self.label_counts)
        loss = self._train(heads, round.sums[_HELD].to(self.label_counts), round.number)
        round.log("fedgen/generator_loss", loss)

    def _train(self, heads: Tensor, counts: Tensor, round_number: int) -> Tensor:
        """Take the generator's steps of a round; returns the loss before the last one.

        Every process does so, and finds the same generator.

        Args:
            heads: the participants' [M, H].
            counts: their label counts [M, classes].
            round_number: of the draws.
        """
        settings, generator = self._settings, self._generator
        draws = self._federation.generator("fedgen", round_number)
        cumulative = _cumulative(counts.sum(dim=0), settings.labels).cpu()
        loss = heads.new_zeros(())
        for _ in range(settings.server_steps):
            labels = _draw(cumulative, torch.rand(1, settings.batch_size, dtype=torch.float64, generator=draws))[0]
            noise = torch.rand(settings.batch_size, settings.noise, generator=draws).to(heads)
            labels = labels.to(heads.device)
            features = generator(noise, labels)
            logits = self._heads(heads, features)
            loss = ensemble_loss(logits, labels, counts, settings.ensemble)
            if settings.diversity:
                loss = loss + settings.diversity * diversity_loss(features, noise)
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
        return loss.detach()

    @override
    def state_dict(self) -> dict[str, Any]:
        if self._is_off:
            return {}
        return {
            "generator": {name: value.detach().cpu().clone() for name, value in self._generator.state_dict().items()},
            "optimizer": self._optimizer.state_dict(),
            "label_counts": self.label_counts.cpu(),
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self._is_off:
            self._generator.load_state_dict(state_dict["generator"])
            self._optimizer.load_state_dict(state_dict["optimizer"])
            self.label_counts = state_dict["label_counts"].to(self.label_counts)


def ensemble_loss(logits: Tensor, labels: Tensor, counts: Tensor, ensemble: str = "losses") -> Tensor:
    """The loss of the clients' heads, as an ensemble, on generated features.

    Args:
        logits: of M heads [M, b, classes].
        labels: the classes of the features [b], of which somebody has examples.
        counts: numbers of examples of each class [M, classes].
        ensemble: ``losses``: ``mean_b sum_i a_i(y_b) CE_i(b)``, a_i(y) being client i's share of the examples of class
            y; ``logits``: the cross entropy of the mean logits, by the clients' numbers of examples.
    """
    if ensemble == "logits":
        weights = counts.sum(dim=1) / counts.sum()
        return cross_entropy((weights[:, None, None] * logits).sum(dim=0), labels)
    held = counts[:, labels]
    losses = cross_entropy(logits.flatten(0, 1), labels.repeat(len(logits)), reduction="none").reshape(held.shape)
    return (held / held.sum(dim=0) * losses).sum(dim=0).mean()


def diversity_loss(features: Tensor, noise: Tensor) -> Tensor:
    """``exp(-mean_ab |z_a - z_b|_1 |e_a - e_b|_2^2)`` of features z [b, d] and noise e [b, q]; norms are means."""
    apart = (features[:, None] - features).abs().mean(dim=2)
    return torch.exp(-(apart * (noise[:, None] - noise).square().mean(dim=2)).mean())


class _Heads:
    """The heads of clients, as functions of their parameters.

    Args:
        name: of the head among the submodules.
        head: the user's.
        layout: of the whole model.

    Raises:
        ValueError: the head has parameters that are not in the layout under its own name, or buffers.
    """

    def __init__(self, name: str, head: nn.Module, layout: ParameterLayout) -> None:
        self._names = [part for part, _ in head.named_parameters()]
        places = [layout.slices.get(f"{name}.{part}") for part in self._names]
        if None in places or not places:
            raise ValueError(
                f"`head={name}` of FedGen must have parameters, all of them trained and none tied to another layer."
            )
        if next(head.named_buffers(), None) is not None:
            raise ValueError(
                f"`head={name}` of FedGen has buffers, which the server does not know by client: name a part without."
            )
        self._head = copy.deepcopy(head).eval()
        self._shapes = [p.shape for _, p in head.named_parameters()]
        self.columns = torch.cat([torch.arange(p.start, p.stop) for p in places if p is not None])

    def __call__(self, heads: Tensor, features: Tensor) -> Tensor:
        """Logits [M, b, classes] of heads [M, H] on features [b, d]."""

        def logits_of(flat: Tensor) -> Tensor:
            sizes = [shape.numel() for shape in self._shapes]
            parts = zip(self._names, flat.split(sizes), self._shapes, strict=True)
            logits: Tensor = functional_call(self._head, {n: p.reshape(s) for n, p, s in parts}, (features,))
            return logits

        logits: Tensor = vmap(logits_of, randomness="error")(heads)
        return logits


def _checked(settings: _Settings) -> _Settings:
    """The settings, with ValueError for those that are not allowed; BatchNorm needs two features."""
    for name in ("weight", "distillation", "weight_decay", "diversity"):
        check_number("FedGen", name, getattr(settings, name), least=0)
    for name in ("decay", "lr"):
        check_number("FedGen", name, getattr(settings, name), above=0)
    for name, least in (("batch_size", 2), ("noise", 1), ("hidden", 1), ("server_steps", 1)):
        check_number("FedGen", name, getattr(settings, name), least=least, whole=True)
    check_choice("FedGen", "ensemble", settings.ensemble, ("losses", "logits"))
    check_choice("FedGen", "labels", settings.labels, ("uniform", "frequency"))
    return settings


def _inputs_of(head: nn.Module, name: str) -> int:
    linear = next((part for part in head.modules() if isinstance(part, nn.Linear)), None)
    if linear is None:
        raise ValueError(f"`head={name}` of FedGen has no linear layer: say its number of inputs as `num_features`.")
    return linear.in_features


def _numbers_of(generator: nn.Module) -> dict[str, Tensor]:
    """The parameters and floating-point buffers of a generator, by name."""
    return {name: value for name, value in generator.state_dict().items() if value.is_floating_point()}


def _split(flat: Tensor, generator: nn.Module) -> dict[str, Tensor]:
    """The inverse of joining ``_numbers_of`` a generator of this form."""
    like = _numbers_of(generator)
    parts = flat.split([value.numel() for value in like.values()])
    return {name: part.reshape(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}


def _cumulative(counts: Tensor, labels: str) -> Tensor:
    """Cumulative probabilities [classes] of the classes that are there, alike or by ``counts`` [classes]."""
    sums = (counts if labels == "frequency" else counts > 0).double().cumsum(dim=0)
    return sums / sums[-1]  # exactly 1 from the last class on that is there, so that none behind it is drawn


def _draw(cumulative: Tensor, draws: Tensor) -> Tensor:
    """Classes from numbers [..., n] in [0, 1); one without probability is never drawn."""
    return torch.searchsorted(cumulative, draws, right=True)


def _put(cohort: Cohort, name: str, rows: Tensor) -> None:
    """Put the rows [C, n] of a cohort's clients to their places in a sum [M, n] over the round's clients."""
    round = cohort.round
    if name not in round.sums:
        round.accumulate(name, rows.new_zeros(len(round.clients), rows.shape[1], dtype=torch.float64))
    # Into the sum itself, which is of our own making: a sum of matrices for each cohort would take as long as M rows.
    round.sums[name][torch.searchsorted(round.clients, cohort.ids).to(rows.device)] = rows.double()
