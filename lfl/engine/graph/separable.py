"""Whether a client's loss is a mean over its examples, by looking at its operations.

A padded batch gives each example's loss alone, and adds them up with weights. That is the loss of the batch only if it,
and whatever is logged, is a mean over examples that do not see each other. Class weights, targets that are ignored,
counts of what a condition selects, or a comparison of examples make it another number, on some batches and not on
others: trying one batch would not show it. The list of operations does.
"""

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_unflatten

from lfl.client.model import ClientModel
from lfl.client.step import NO_EXTRAS, Extras
from lfl.data.nests import without_riders
from lfl.engine.graph.alias import owner_of
from lfl.engine.graph.examples import (
    MANY,
    ROWS,
    SELECTS,
    SHARED,
    Call,
    Examples,
    Operand,
    Shapes,
    Sizes,
    constant,
    mixed,
    number,
    settle,
)
from lfl.engine.graph.listing import Listing, Outputs
from lfl.engine.graph.rules import LOSSES, SIZED, examples_of

Step = Callable[[Tensor, Any], Outputs]
"""From parameters [D] and a batch, a nest of tensors ``[b, ...]``, to results."""

_SMALL, _LARGE = 2, 3  # examples of the smaller batch, and of the larger one at least


def why_not_separable(model: ClientModel, batch: Any, key: Tensor, extras: Extras = NO_EXTRAS) -> str | None:
    """Find out why the loss, or a logged value, of a client is not shown to be a mean over its examples.

    Runs the training step, which may change the module: hand in a copy.

    Args:
        model: a probed model.
        batch: one client's batch, a nest of tensors ``[b, ...]``.
        key: its key, without dimensions.
        extras: what the loss terms use besides, the client's own.

    Returns:
        The reason, for a sentence about the module; None if all of them are such means.
    """
    if model.traits.random_operations:
        return "its training step draws random numbers for the batch as a whole"
    if model.global_feature_names or extras.global_features:
        return "its loss reads the features of the global model, which are computed for a batch as a whole"
    params = model.flat_parameters()

    def step(params: Tensor, batch: Any) -> Outputs:
        loss, logs = model.loss(params, batch, 0, key, params.detach(), extras)
        return {"its loss": loss, **{f"its logged value {name!r}": value for name, value in logs.items()}}

    with model.recording():
        return why_not_a_mean(step, params, without_riders(batch))


def why_not_a_mean(step: Step, params: Tensor, batch: Any) -> str | None:
    """Find out why a result of ``step`` is not shown to be a mean over the examples of a batch.

    Args:
        step: what is asked about.
        params: where to run it.
        batch: examples are repeated where there are fewer than three.

    Returns:
        The reason; None if every result is such a mean, or does not depend on the batch.
    """
    leaves, spec = tree_flatten(batch)
    count = len(leaves[0]) if leaves[0].dim() else 0
    if not count or any(leaf.shape[:1] != (count,) for leaf in leaves):
        return "the parts of its batch differ in length"
    examples = torch.arange(max(count, _LARGE), device=leaves[0].device) % count

    def at(picked: Tensor) -> list[Tensor]:
        return [leaf[picked] for leaf in leaves]  # copies, which a step may write into

    def flat(params: Tensor, *leaves: Tensor) -> Outputs:
        return step(params, tree_unflatten(leaves, spec))

    start = params.detach().requires_grad_()
    try:
        large, small = (Listing(flat, start, at(examples[:size])) for size in (len(examples), _SMALL))
    except Exception as error:  # whatever a user's module raises is the reason
        return f"its training step cannot be listed ({_said(error)})"
    if large.gradients:
        return f"its loss has a gradient that is not torch's own ({large.gradients[0]})"
    try:
        reason = _Reading(large, small, (len(examples), _SMALL)).why_not_means()
    except Exception as error:  # an operation with other arguments than the rules expect, in another torch
        return f"its operations cannot be followed ({_said(error)})"
    if reason is not None:
        return reason
    # What the step does with two examples and more is shown. With one alone it may take another branch.
    try:
        return _why_not_alone(small.outputs, [flat(start, *at(examples[i : i + 1])) for i in range(_SMALL)])
    except Exception as error:
        return f"its training step cannot be taken with a single example ({_said(error)})"


def _said(error: Exception) -> str:
    said = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {said[0][:200]}"


def _why_not_alone(whole: Outputs, singles: list[Outputs]) -> str | None:
    for name, value in whole.items():
        alone = torch.stack([single[name].detach() for single in singles]).double()
        tolerance = max(1e-3 * float(alone.abs().max()), 1e-6)  # other kernels round otherwise
        if not torch.isclose(alone.mean(), value.detach().double(), rtol=0, atol=tolerance, equal_nan=True):
            return f"{name} is another one for single examples"
    return None


class _Reading:
    """Follows the examples of a batch through two listings.

    Args:
        large: with b examples.
        small: with b' examples.
        sizes: b and b'.
    """

    def __init__(self, large: Listing, small: Listing, sizes: Sizes) -> None:
        self._large, self._small, self._sizes = large, small, sizes
        self._found: dict[fx.Node, list[Operand]] = {}  # of each operation, its results
        self._memory: dict[fx.Node, list[fx.Node]] = {}  # the values that may share the memory of one
        self._spoiled: Examples | None = None  # what was written where other values may lie

    def why_not_means(self) -> str | None:
        """Find out why one of the outputs is not shown to be a mean."""
        if [_kind(node) for node in self._large.nodes] != [_kind(node) for node in self._small.nodes]:
            return "its training step does other operations with another number of examples"
        for node, twin in zip(self._large.nodes, self._small.nodes, strict=True):
            if node.op == "placeholder":
                known = ROWS if self._found else SHARED  # the parameters come first
                self._found[node] = [Operand(known, _shapes(node, twin)[0], _values(node)[0].dtype)]
            elif node.op == "get_attr":
                values = self._large.constant(str(node.target)), self._small.constant(str(twin.target))
                self._found[node] = [constant(*values, self._sizes)]
            elif node.target is operator.getitem:
                source: Any = node.args[0]
                self._found[node] = [self._found[source][node.args[1]]]  # type: ignore[index]
            elif node.op == "call_function":
                self._found[node] = self._results(node, twin)
            else:
                outputs: Any = node.args[0]
                return self._judge([self._found[output][0].known for output in outputs])
            self._memory.setdefault(owner_of(node), []).append(node)
        return None

    def _judge(self, outputs: list[Examples]) -> str | None:
        if self._spoiled:
            return f"its training step {self._spoiled.reason} {self._spoiled.place}".strip()
        for name, known in zip(self._large.outputs, outputs, strict=True):
            if known.kind == "mixed":
                return f"{name} {known.reason} {known.place}".strip()
            if known.kind == "sum" and known.power == 0:
                return f"{name} is a sum over the examples, and no mean"
            if known.power != (-1 if known.kind == "sum" else 0):
                return f"{name} {MANY.reason}"
        return None

    def _results(self, node: fx.Node, twin: fx.Node) -> list[Operand]:
        """All that is known of each result of an operation."""
        shapes = _shapes(node, twin)
        call, varies = self._call(node, twin, shapes)
        known = self._result(call, varies)
        if known == SELECTS:
            # Their number is one of Python's from here on, and may be used for anything.
            self._spoiled = self._spoiled or _placed(known, node)
        results = []
        for index, shape in enumerate(shapes):
            own = mixed("reads more of a loss than its value") if index and call.name in LOSSES else known
            own = settle(own, shape, self._sizes)
            results.append(Operand(_placed(own, node), shape, _values(node)[index].dtype))
        if results:
            self._write(call, results[0].known)
        return results

    def _result(self, call: Call, varies: bool) -> Examples:
        target = call.node.target
        if not isinstance(target, OpOverload):
            return mixed("uses an operation that is not torch's")
        same = not varies and all(first == second for first, second in call.shapes)
        is_random = torch.Tag.nondeterministic_seeded in target.tags
        if same and not is_random and all(operand.known == SHARED for operand in call.all_operands):
            return SHARED
        return MANY if varies and call.name not in SIZED else examples_of(call, target.tags)

    def _call(self, node: fx.Node, twin: fx.Node, shapes: list[Shapes]) -> tuple[Call, bool]:
        """An operation of both listings, and whether they differ in an argument that is no operand."""
        arguments, operands, varies = dict(_bind(node)), {}, False
        for name, (first, second) in {name: (arguments[name], value) for name, value in _bind(twin).items()}.items():
            parts = first if isinstance(first, list | tuple) else [first]
            if any(isinstance(part, fx.Node) for part in parts):
                found = [self._found[part][0] if isinstance(part, fx.Node) else None for part in parts]
                arguments[name] = found if isinstance(first, list | tuple) else found[0]
                operands[name] = [operand for operand in found if operand is not None]
            elif first != second and name in _factors(node) and first is not None and second is not None:
                operands[name] = [number(first, second, self._sizes)]
            elif first != second:
                varies = True
        name = str(getattr(node.target, "overloadpacket", node.target)).rpartition(".")[2]
        # `add_`, but not `__and__`.
        name = name if name.endswith("__") else name.removesuffix("_")
        return Call(name, node, arguments, operands, shapes, self._sizes), varies

    def _write(self, call: Call, result: Examples) -> None:
        """Note what an operation writes in place."""
        arguments = getattr(getattr(call.node.target, "_schema", None), "arguments", ())
        for argument in arguments:
            written = _bind(call.node).get(argument.name)
            if argument.alias_info is None or not argument.alias_info.is_write or not isinstance(written, fx.Node):
                continue
            if argument.name.startswith("running_") and result.kind == "rows":
                continue  # the statistics of a batch normalisation in evaluation mode, which only reads them
            before = [o.known for value in self._memory[owner_of(written)] for o in self._found[value]]
            if all(known.kind == result.kind and known.power == result.power for known in before):
                continue  # what shares this memory is no other than it was; or it is mixed, and stays so
            if self._is_alone(written):
                self._found[written] = [replace(self._found[written][0], known=result)]
            elif self._spoiled is None:
                reason = result if result.kind == "mixed" else mixed("writes into a value that others may share")
                self._spoiled = _placed(reason, call.node)

    def _is_alone(self, node: fx.Node) -> bool:
        """Whether the memory of a value is of the step's own, and no view of it was taken."""
        owner = owner_of(node)
        return owner.op == "call_function" and all(_writes(o) for o in self._memory[owner] if o is not owner)


def _kind(node: fx.Node) -> tuple[str, str]:
    """The kind of a node, which two listings must have in common."""
    return node.op, str(node.target) if node.op == "call_function" else ""


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and bool(node.target._schema.is_mutable)


def _bind(node: fx.Node) -> dict[str, Any]:
    """An operation's arguments by name."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {str(index): argument for index, argument in enumerate(node.args)} | dict(node.kwargs)
    defaults = {argument.name: argument.default_value for argument in schema.arguments}
    given = zip((argument.name for argument in schema.arguments), node.args, strict=False)
    return defaults | dict(given) | dict(node.kwargs)


def _factors(node: fx.Node) -> list[str]:
    """The names of arguments that are numbers to compute with: no sizes, axes or places."""
    arguments = node.target._schema.arguments if isinstance(node.target, OpOverload) else ()
    return [argument.name for argument in arguments if str(argument.real_type) in ("number", "float", "Tensor")]


def _values(node: fx.Node) -> list[Tensor]:
    """The results of an operation, of which only shapes and types are known."""
    value = node.meta.get("val")
    parts = value if isinstance(value, list | tuple) else [value]
    return [part if isinstance(part, Tensor) else torch.empty(0) for part in parts]


def _shapes(node: fx.Node, twin: fx.Node) -> list[Shapes]:
    pairs = zip(_values(node), _values(twin), strict=False)
    return [(tuple(first.shape), tuple(second.shape)) for first, second in pairs]


def _placed(known: Examples, node: fx.Node) -> Examples:
    """A reason with the operation that it began with, and the user's line."""
    if known.kind != "mixed" or known.place:
        return known
    line = node.stack_trace or node.meta.get("stack_trace")
    return replace(known, place=f"({node.target}, at {line})" if line else f"({node.target})")
