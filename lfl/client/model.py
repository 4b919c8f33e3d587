"""One client's model: the LightningModule, seen as a function of one flat vector.

There is one module for all clients. The sequential engine lets its parameters be views of a client's row; the
vectorized engine calls it functionally under vmap.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.func import functional_call
from torchmetrics import Metric

from lfl.client.batch_norm import use_running_statistics_of_single_values
from lfl.client.checkpoints import client_random
from lfl.client.embeddings import padding_rows
from lfl.client.layout import ParameterLayout
from lfl.client.module_copy import copy_of
from lfl.client.recorder import Recorder, as_scalar
from lfl.client.step import NO_EXTRAS, ClientStep, Extras, LossTerm, StepModule
from lfl.client.traits import StepTraits
from lfl.client.value_reads import out_of_reach

Batch = Any


class _AllFeaturesFound(Exception):
    """Raised to end a pass that was made for features alone."""


class ClientModel:
    """Runs the training step of one LightningModule at any parameters.

    Args:
        module: the model; its parameters become views of flat vectors.
        autocast: makes the precision's context.
        convert: converts a batch to the precision's input type.
        loss_terms: the callbacks' ``client_loss``, in order.
        features: names of submodules whose outputs the loss terms read.
        global_features: names of submodules whose outputs at x they read.
        frozen_rows: names of the rows of parameters at which they read them, too.
        layout: where each parameter lies in a vector [D]; None for those that are trainable now.

    Attributes:
        traits: what the training step does besides computing a loss; found out by ``lfl.client.probe``.
        tied_padding: names of embeddings with a row that stands for padding, and whose weight is another layer's too.
    """

    def __init__(
        self,
        module: LightningModule,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        convert: Callable[[Any], Any] = lambda batch: batch,
        loss_terms: tuple[LossTerm, ...] = (),
        features: tuple[str, ...] = (),
        global_features: tuple[str, ...] = (),
        frozen_rows: tuple[str, ...] = (),
        layout: ParameterLayout | None = None,
    ) -> None:
        self.module, self.autocast, self.convert = module, autocast, convert
        self.layout = layout or ParameterLayout.of_parameters(module)
        self.buffer_layout = ParameterLayout.of_buffers(module)
        self.recorder = Recorder()
        self.traits = StepTraits()
        self._metrics = [m for m in module.modules() if isinstance(m, Metric)]
        self._loss_terms = loss_terms
        self._options = autocast, convert, loss_terms, features, global_features, frozen_rows  # for a copy
        self._features: dict[str, Tensor] = {}
        self._wanted: set[str] = set()  # a pass ends as soon as these features are there; empty to let it run
        self._parts = list(module.modules())
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        self.parameters = [parameters[name] for name in self.layout.names]
        self._buffers = {name: buffers[name] for name in self.buffer_layout.names}
        self._counters = {name: buffer for name, buffer in buffers.items() if not buffer.is_floating_point()}
        use_running_statistics_of_single_values(module)
        self._bound: Tensor | None = None
        self._places: dict[str, list[tuple[str, str]]] = {}  # by submodule
        places = dict(self._places_in(""))
        times = Counter(places.values())
        padded = {place: rows for place, rows in padding_rows(module).items() if place in places}
        self._padding_rows = {places[place]: rows for place, rows in padded.items() if times[places[place]] == 1}
        self.tied_padding = [place for place in padded if times[places[place]] > 1]
        self._frozen: frozenset[str] = frozenset()  # parameters without a gradient in this phase
        self._receiving, self._receiving_names = self.parameters, list(self.layout.names)
        self.missing: list[str] = []  # parameters that the last loss did not reach
        self.global_feature_names, self._frozen_rows = global_features, frozen_rows
        for name in dict.fromkeys(features + global_features):
            self._capture(name)

    def copy(self, with_terms: bool = True) -> ClientModel:
        """The same model around a copy of the module: whatever is tried on it leaves no trace in the module.

        Args:
            with_terms: whether its loss has the terms that callbacks add.
        """
        options = self._options if with_terms else (*self._options[:2], (), (), (), ())
        twin = ClientModel(copy_of(self.module), *options, self.layout)
        twin.traits = self.traits
        twin.recorder.directions = self.recorder.directions  # what Metric objects say of themselves
        return twin

    # -- which parameters are trained -----------------------------------------------------------------------------

    def names_of(self, patterns: Iterable[str]) -> list[str] | None:
        """Names of the parameters that match, and require a gradient now; None where all do.

        Raises:
            ValueError: a pattern matches no parameter.
        """
        mask = self.layout.select(patterns)
        pairs = zip(self.layout.slices.items(), self.parameters, strict=True)
        names = [name for (name, part), parameter in pairs if mask[part.start] and parameter.requires_grad]
        return None if len(names) == len(self.parameters) else names

    @contextmanager
    def training_only(self, names: list[str] | None) -> Iterator[None]:
        """Compute gradients for the named parameters only; None for all. May be nested."""
        before = self._frozen, self._receiving, self._receiving_names
        if names is not None or self._frozen:
            trained = set(self.layout.names if names is None else names)
            self._frozen = frozenset(self.layout.names) - trained
            pairs = zip(self.layout.names, self.parameters, strict=True)
            self._receiving = [parameter for name, parameter in pairs if name in trained]
            self._receiving_names = [name for name in self.layout.names if name in trained]
        try:
            yield
        finally:
            self._frozen, self._receiving, self._receiving_names = before

    def gradient_of(self, loss: Tensor) -> Tensor:
        """The gradient [D] of a loss computed with the module's own parameters; zero for those that are frozen.

        Parameters that the loss does not reach get zeros too, and are named in ``missing``.
        """
        if not self._receiving:  # all that is trained in this phase is frozen in this round
            found: tuple[Tensor | None, ...] = ()
        elif self.traits.needs_backward:
            found = self._accumulated(loss)
        else:
            found = torch.autograd.grad(loss, self._receiving, allow_unused=True)
        self.missing = [name for name, g in zip(self._receiving_names, found, strict=True) if g is None]
        gradients = [
            torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g  # rows of a sparse embedding
            for p, g in zip(self._receiving, found, strict=True)
        ]
        if len(gradients) == len(self.parameters):
            return torch.cat([gradient.reshape(-1) for gradient in gradients])
        parts = iter(gradients)
        pairs = zip(self.layout.names, self.parameters, strict=True)
        return torch.cat(
            [(torch.zeros_like(p) if name in self._frozen else next(parts)).reshape(-1) for name, p in pairs]
        )

    def _accumulated(self, loss: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients that ``backward`` adds to the parameters: reentrant checkpoints give them in no other way."""
        for parameter in self._receiving:
            parameter.grad = None
        loss.backward()
        gradients = tuple(parameter.grad for parameter in self._receiving)
        for parameter in self._receiving:
            parameter.grad = None
        return gradients

    # -- parameters and buffers -----------------------------------------------------------------------------------

    def bind(self, flat: Tensor) -> None:
        """Make the module's parameters views of ``flat`` [D]."""
        # `_bound` keeps the memory alive, so that an equal address is the same memory, and no later tensor's.
        if self._bound is not None and self._bound.data_ptr() == flat.data_ptr() and self._bound.shape == flat.shape:
            return
        # Through `data`: the parameters stay the objects that modules, hooks and optimizers hold.
        for parameter, view in zip(self.parameters, self.layout.views(flat).values(), strict=True):
            parameter.data = view
        self._bound = flat

    def reclaim(self, flat: Tensor) -> None:
        """Take over into ``flat`` [D] the parameters to whose ``data`` the user has assigned other tensors."""
        for parameter, view in zip(self.parameters, self.layout.views(flat).values(), strict=True):
            if parameter.data_ptr() != view.data_ptr():
                view.copy_(parameter.data)
                parameter.data = view

    def flat_parameters(self) -> Tensor:
        """A copy of the module's trainable parameters [D]."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def flat_buffers(self) -> Tensor:
        """A copy of the module's floating-point buffers [B]."""
        if not self._buffers:
            return self.parameters[0].new_empty(0)
        return torch.cat([self.module.get_buffer(name).reshape(-1) for name in self._buffers])

    @property
    def counters(self) -> list[Tensor]:
        """The module's integer buffers as they are now."""
        return [self.module.get_buffer(name) for name in self._counters]

    def load_buffers(self, flat: Tensor, counters: list[Tensor]) -> None:
        """Copy buffers [B] and the integer ones into the module."""
        values = {**self.buffer_layout.views(flat), **dict(zip(self._counters, counters, strict=True))}
        for name, own in {**self._buffers, **self._counters}.items():
            own.copy_(values[name])
            # A step may have put another tensor in its place.
            owner, _, leaf = name.rpartition(".")
            self.module.get_submodule(owner)._buffers[leaf] = own

    def load(self, vector: Tensor, buffers: Tensor, counters: list[Tensor]) -> None:
        """Make the module one model: its parameters views of ``vector`` [D], its buffers copies of these."""
        self.bind(vector)
        self.load_buffers(buffers, counters)

    def state_dict_of(self, vector: Tensor, buffers: Tensor, counters: list[Tensor]) -> dict[str, Tensor]:
        """The module's state dict with these parameters [D] and buffers [B]; the module itself is left alone."""
        floats = self.buffer_layout.views(buffers) if self._buffers else {}
        values = {**self.layout.views(vector), **floats, **dict(zip(self._counters, counters, strict=True))}
        own = {id(tensor): name for name, tensor in self._named_tensors() if name in values}
        names = {name: own.get(id(tensor), "") for name, tensor in self._named_tensors(remove_duplicate=False)}
        state: dict[str, Tensor] = self.module.state_dict()
        return {name: values.get(names.get(name, ""), value) for name, value in state.items()}

    def _named_tensors(self, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
        yield from self.module.named_parameters(remove_duplicate=remove_duplicate)
        yield from self.module.named_buffers(remove_duplicate=remove_duplicate)

    def converted(self, batch: Batch) -> Batch:
        """A batch in the precision's input type; nothing is walked through where it is that already."""
        if type(batch) is tuple:
            dtype = self.layout.dtype
            for part in batch:
                if not (isinstance(part, Tensor) and (part.dtype == dtype or not part.is_floating_point())):
                    break
            else:
                return batch
        return self.convert(batch)

    # -- the training step ----------------------------------------------------------------------------------------

    def loss(
        self,
        params: Tensor | None,
        batch: Batch,
        step: int,
        key: Tensor,
        anchor: Tensor,
        extras: Extras = NO_EXTRAS,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and logged values of one client's step.

        Args:
            params: its parameters [D] for a functional call; None to use the module as it is bound.
            batch: one batch, without a cohort dimension.
            step: the local step.
            key: the key of its random draws in this step.
            anchor: x [D].
            extras: what the loss terms use besides.
        """
        self.recorder.start()
        with self._own_operations(key):
            if params is None:
                loss = self.run_step(batch, step)
            else:
                # One gradient with respect to the whole vector: what is detached gets zeros in it.
                views = {
                    name: view.detach() if name in self._frozen else self._without_padding(name, view)
                    for name, view in self.layout.views(params).items()
                }
                with out_of_reach():  # a functional step is one under vmap, or one that is recorded
                    loss = self.call(self._wrapper, views, (batch, step))
            if self._loss_terms:
                # Functions, since most terms read no parameters; features are copied, as the next pass replaces them.
                own = self._joined_parameters if params is None else lambda: params
                client = ClientStep(batch, anchor, dict(self._features), extras, own, self._forward, self.recorder.log)
                for term in self._loss_terms:
                    loss = term(client, loss)
        return loss, dict(self.recorder.values)

    def _own_operations(self, key: Tensor) -> AbstractContextManager[Any]:
        """The context in which torch's operations are replaced, for a step that has such operations."""
        traits = self.traits
        return client_random(key) if traits.random_operations or traits.unbatched_layers else nullcontext()

    def _without_padding(self, name: str, view: Tensor) -> Tensor:
        """A parameter without gradient in the row of an embedding that stands for padding.

        torch's rule for embeddings under vmap forgets ``padding_idx`` for all clients but the first.
        """
        padding = self._padding_rows.get(name)
        return view if padding is None else view.detach().where(padding.to(view.device), view)

    def _joined_parameters(self) -> Tensor:
        """The module's own parameters as one vector [D], with gradient."""
        return torch.cat([p.reshape(-1) for p in self.parameters])

    def _forward(self, params: Tensor, inputs: tuple[Any, ...], part: str) -> Any:
        """The ``forward`` of a submodule, or of the module where ``part`` is empty, at ``params`` [D]."""
        views = self.layout.views(params)
        placed = {place: views[name] for place, name in self._places_in(part) if name in views}
        return functional_call(self.module.get_submodule(part), placed, inputs, tie_weights=False)

    def call(self, wrapper: StepModule, views: Mapping[str, Tensor], inputs: tuple[Any, ...]) -> Any:
        """Call a wrapper of the module with other tensors in the places of its parameters, and perhaps buffers.

        Args:
            wrapper: whose ``module`` is the model's.
            views: by names of the layouts.
            inputs: what the wrapper takes.
        """
        placed = {f"module.{place}": views[name] for place, name in self._places_in("") if name in views}
        # torch's own way to tie fails where one module has two names: it takes the place for another one.
        return functional_call(wrapper, placed, inputs, tie_weights=False)

    def _places_in(self, part: str) -> list[tuple[str, str]]:
        """The places of parameters and buffers below a submodule, with their names: a tied one has several places."""
        if part not in self._places:
            tensors = {**dict(zip(self.layout.names, self.parameters, strict=True)), **self._buffers}
            names = {id(tensor): name for name, tensor in tensors.items()}
            self._places[part] = [
                (f"{prefix}.{leaf}" if prefix else leaf, names[id(tensor)])
                for prefix, owner in self.module.get_submodule(part).named_modules()  # each once, under its first name
                for leaf, tensor in (*owner._parameters.items(), *owner._buffers.items())
                if id(tensor) in names
            ]
        return self._places[part]

    def frozen_rows_in(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of the loss terms' ``rows`` that are parameters of frozen models [G, D], by name."""
        return {name: rows[name] for name in self._frozen_rows if name in rows}

    @torch.no_grad()
    def global_features(self, batch: Batch, key: Tensor, anchor: Tensor | None) -> dict[str, Tensor]:
        """Outputs of the submodules named in ``global_features`` on one client's batch, in evaluation mode.

        Args:
            batch: one batch, without a cohort dimension.
            key: the key of its random draws in this step.
            anchor: where: x, or another frozen model [D], for a functional call; None to use the module as it is bound.

        Raises:
            ValueError: the training step logs a Metric object, which would count this pass too.
        """
        if self.traits.logged_metrics:
            raise ValueError(
                f"The training step logs the Metric object {self.traits.logged_metrics[0]!r}, which would also count "
                "the pass of the frozen global model: log a number instead."
            )
        # Not `eval()` and `train()`: parts that the user keeps in evaluation mode must stay in it.
        modes = [part for part in self._parts if part.training]
        for part in modes:
            part.training = False
        self._features, self._wanted = {}, set(self.global_feature_names)
        try:
            with self._own_operations(key):
                if anchor is None:
                    self.run_step(batch, 0)
                else:
                    self.call(self._wrapper, self.layout.views(anchor), (batch, 0))
        except _AllFeaturesFound:
            pass
        finally:
            self._wanted = set()
            for part in modes:
                part.training = True
        return {name: self._features[name] for name in self.global_feature_names}

    def run_step(self, batch: Batch, step: int) -> Tensor:
        """The module's ``training_step``; returns the scalar loss.

        Raises:
            TypeError: it returned something else.
        """
        arguments = (batch, step) if self._takes_index else (batch,)
        with self.autocast():
            output = self.module.training_step(*arguments)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor):
            raise TypeError(
                f"`{type(self.module).__name__}.training_step` must return the loss (a tensor, or a dict with 'loss'), "
                f"got {type(output).__name__}."
            )
        return as_scalar(loss, f"`{type(self.module).__name__}.training_step` must return a scalar loss")

    def compute_metrics(self, gather: Callable[[Any], list[Any]] | None = None) -> dict[str, float]:
        """Values of the Metric objects logged since they were reset, over all their examples.

        A Metric object meets those of the other processes when it is computed, so that all must compute the same ones,
        whether or not they had anything to log.

        Args:
            gather: gives the values of all processes; None to compute this process's own.
        """
        places = {id(metric): index for index, metric in enumerate(self._metrics)}  # `==` of metrics makes a metric
        logged = {name: places[id(metric)] for name, metric in self.recorder.metrics.items()}
        if gather is not None and self._metrics:
            logged = {name: index for part in gather(logged) for name, index in part.items()}
        computed = {}
        for name, index in sorted(logged.items()):
            metric = self._metrics[index]
            self.recorder.metrics[name] = metric  # to be reset, also where only other processes have logged it
            # One client's own metric must not wait for the other processes, which may have no such client.
            together = metric.distributed_available_fn
            metric.distributed_available_fn = together if gather is not None else lambda: False
            computed[name] = float(metric.compute())
            metric.distributed_available_fn = together
        return computed

    def reset_metrics(self) -> None:
        """Reset the Metric objects that were logged, as Lightning does after an epoch; others are the user's own."""
        for metric in self.recorder.metrics.values():
            metric.reset()
        self.recorder.metrics.clear()

    def call_hook(self, name: str, first: Callable[[str], None]) -> dict[str, Tensor]:
        """Call a hook of the module that takes no arguments, after ``first``; returns what both log."""
        with self.recording() as recorder:
            recorder.start()
            first(name)
            getattr(self.module, name)()
            return dict(recorder.values)

    @contextmanager
    def recording(self) -> Iterator[Recorder]:
        """Redirect ``self.log`` of the module to the recorder. May be nested."""
        # In the instance's dict, which wins over the class: no module has to know of it.
        own = {name: self.module.__dict__.get(name) for name in ("log", "log_dict")}
        self.module.__dict__.update(log=self.recorder.log, log_dict=self.recorder.log_dict)
        try:
            yield self.recorder
        finally:
            for name, value in own.items():
                if value is None:
                    del self.module.__dict__[name]
                else:
                    self.module.__dict__[name] = value

    @cached_property
    def _wrapper(self) -> StepModule:
        return StepModule(self.module, self.run_step)

    @cached_property
    def _takes_index(self) -> bool:
        parameters = inspect.signature(self.module.training_step).parameters.values()
        return len(parameters) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)

    def _capture(self, name: str) -> None:
        def keep(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            self._features[name] = output
            if self._wanted and self._wanted <= self._features.keys():
                raise _AllFeaturesFound  # nobody reads what the rest of the step would compute

        self.module.get_submodule(name).register_forward_hook(keep)
