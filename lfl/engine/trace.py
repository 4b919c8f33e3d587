"""Recording a local step once and replaying it without Python between its tensor operations."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.dialect.common.cse_pass import CSEPass, get_CSE_banned_ops
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from lfl.engine.descent import descend_in_place

Step = Callable[..., tuple[Tensor, Tensor, dict[str, Tensor]]]
Replay = Callable[..., list[Tensor]]

_CONSTANT = "_constant_"  # begins the names of what was computed once
_LARGEST_CONSTANT = 2**16  # numbers of a constant that is worth keeping between calls
_aten = torch.ops.aten
# torch's own functions are called in half the time of the same operations by their full names.
_SHORT_CUTS = {
    _aten._log_softmax.default: torch._log_softmax,
    _aten._log_softmax_backward_data.default: torch._log_softmax_backward_data,
    _aten.add.Tensor: torch.add,
    _aten.addmm.default: torch.addmm,
    _aten.argmax.default: torch.argmax,
    _aten.convolution.default: torch.convolution,
    _aten.eq.Tensor: torch.eq,
    _aten.gather.default: torch.gather,
    _aten.mean.default: torch.mean,
    _aten.mean.dim: torch.mean,
    _aten.ne.Scalar: torch.ne,
    _aten.neg.default: torch.neg,
    _aten.relu.default: torch.relu,
    _aten.scatter_add.default: torch.scatter_add,
    _aten.select.int: torch.select,
    _aten.split_with_sizes.default: torch.split_with_sizes,
    _aten.t.default: torch.t,
    _aten.unsqueeze.default: torch.unsqueeze,
    _aten.where.self: torch.where,
    _aten.sub.Tensor: torch.sub,
    _aten.mul.Tensor: torch.mul,
    _aten.mul.Scalar: torch.mul,
    _aten.div.Tensor: torch.div,
    _aten.mm.default: torch.mm,
    _aten.bmm.default: torch.bmm,
    _aten.pow.Tensor_Scalar: torch.pow,
    _aten.sum.dim_IntList: torch.sum,
    _aten.transpose.int: torch.transpose,
    _aten.view.default: Tensor.view,
    _aten.expand.default: Tensor.expand,
}
# How far a gradient added by a matrix product may be from the same in two operations, of the largest number.
_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4}


def _max_pool2d(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Max pooling; on a CPU torch's kernel for channels-last images is six times faster, copies included."""
    if x.device.type != "cpu" or x.dim() != 4:
        found: tuple[Tensor, Tensor] = _aten.max_pool2d_with_indices.default(x, *arguments)
        return found
    values, indices = _aten.max_pool2d_with_indices.default(x.contiguous(memory_format=torch.channels_last), *arguments)
    return values.contiguous(), indices.contiguous()


_SHORT_CUTS[_aten.max_pool2d_with_indices.default] = _max_pool2d
_SHAPE_ONLY = (_aten.ones_like.default, _aten.zeros_like.default, _aten.full_like.default)


DIFFERS = (
    "The training step, recorded and replayed, gives other numbers than the step itself: it depends on something "
    "besides its batch and parameters. Use `trainer.trace_steps=false`."
)


class TraceError(RuntimeError):
    """A recorded step does not do what the step does."""


class TracedStep:
    """A step as the list of its tensor operations, recorded for each shape of its arguments.

    For small models most of a step's time goes into vmap and modules, not into arithmetic. The recorded operations
    are the same ones, in the same order, without those that change nothing, and give the same bits. What is not a
    tensor is recorded as it was at the first call: a step that reads ``batch_idx``, ``current_epoch``, the time or a
    Python counter must not be recorded. The second call of every shape is therefore computed both ways and compared.

    Args:
        step: from parameters [G, D], tensors and nests of tensors to gradients, losses and logged values.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._recorded: dict[Any, tuple[Replay, tuple[str, ...]]] = {}
        self._descents: dict[Any, tuple[Replay, tuple[str, ...]]] = {}
        self._trusted: set[Any] = set()

    def __call__(self, *arguments: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The step's result."""
        leaves = leaves_of(arguments)
        shape = shape_of(leaves)
        if shape not in self._recorded:
            recorded, names = record(self._step, arguments)
            self._recorded[shape] = _replay_of(recorded), names
            return self._step(*arguments)
        replay, names = self._recorded[shape]
        gradients, losses, *logged = replay(*leaves)
        result = gradients, losses, dict(zip(names, logged, strict=True))
        if shape not in self._trusted:
            _compare(result, self._step(*arguments))
            self._trusted.add(shape)
        return result

    def descend(self, rate: float, params: Tensor, *arguments: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Take the step of plain SGD, ``params -= rate * gradients``, in place; returns losses and logged values.

        A gradient that is a product of two matrices is added to its parameters by the multiplication itself: no
        gradient is written and read again. Where that happens the numbers differ from the two operations by rounding;
        they are the same at every call, the first of each shape included, which is compared with the step itself.
        """
        leaves = [params, *leaves_of(arguments)]
        shape = shape_of(leaves)
        if shape not in self._descents:
            recorded, names = record(self._step, (params, *arguments), descend=True)
            self._descents[shape] = _replay_of(recorded), names
            self._check_descent(shape, leaves, self._step(params, *arguments))
        return self._replay_descent(shape, leaves, rate)

    def _check_descent(
        self, shape: Any, leaves: list[Tensor], computed: tuple[Tensor, Tensor, dict[str, Tensor]]
    ) -> None:
        """Compare with the step itself, on the side, at a rate that moves parameters as far as the largest one is."""
        gradients, losses, logs = computed
        params, largest = leaves[0].clone(), float(gradients.abs().max())
        size = max(1.0, float(params.abs().max()))
        rate = size / largest if largest else 1.0
        expected = params - rate * gradients
        found = self._replay_descent(shape, [params, *leaves[1:]], rate)
        _compare(found, (losses, logs))
        _compare(params, expected, within=_TOLERANCE[params.dtype] * size)

    def _replay_descent(self, shape: Any, leaves: list[Tensor], rate: float) -> tuple[Tensor, dict[str, Tensor]]:
        replay, names = self._descents[shape]
        losses, *logged = replay(*leaves, -rate)
        return losses, dict(zip(names, logged, strict=True))


def shape_of(leaves: list[Tensor]) -> Any:
    """What a recording is good for: shapes and types."""
    return tuple([(leaf.shape, leaf.dtype) for leaf in leaves])


def _compare(replayed: Any, computed: Any, within: float = 0.0) -> None:
    """Raise unless the two agree to the bit, or to ``within``."""
    pairs = zip(tree_leaves(replayed), tree_leaves(computed), strict=True)
    if not all(torch.allclose(a, b, rtol=0.0, atol=within, equal_nan=True) for a, b in pairs):
        raise TraceError(DIFFERS)


def leaves_of(tree: Any) -> list[Tensor]:
    """The leaves of a nest; for tuples and dicts of tensors faster than torch's own."""
    found: list[Tensor] = []
    for part in tree:
        if type(part) is Tensor:
            found.append(part)
        elif isinstance(part, tuple):
            found += leaves_of(part)
        elif type(part) is dict:
            found += leaves_of(tuple(part.values()))
        else:
            found += tree_leaves(part)
    return found


def record(step: Step, arguments: Any, descend: bool = False) -> tuple[fx.GraphModule, tuple[str, ...]]:
    """The operations of a step, from leaves to gradients, losses and logged values, and the names of the last.

    The module's code is not made yet. No result is an argument, a constant, or a view of one.

    With ``descend`` the gradients, times a last argument, are added to the first leaf instead of being returned.
    """
    leaves, spec = tree_flatten(arguments)
    names: tuple[str, ...] = ()

    def flat(*leaves: Tensor) -> list[Tensor]:
        nonlocal names
        gradients, losses, logs = step(*tree_unflatten(leaves, spec))
        names = tuple(logs)
        return [gradients, losses, *logs.values()]

    recorded = make_fx(flat)(*leaves)
    # Frozen parameters are no reason to keep a graph at every call, nor to enter a `no_grad` there.
    for name, constant in [*recorded.named_parameters(), *recorded.named_buffers()]:
        if constant.requires_grad:
            setattr(recorded, name, torch.nn.Parameter(constant.detach(), requires_grad=False))
    recorded = _simplify(recorded)
    if descend:
        descend_in_place(recorded)
    _own_results(recorded.graph)
    return recorded, names


def _replay_of(recorded: fx.GraphModule) -> Replay:
    """The operations as a Python function, which holds nothing else."""
    for node in recorded.graph.nodes:
        node.target = _SHORT_CUTS.get(node.target, node.target)
    recorded.recompile()
    replay: Replay = recorded.forward
    return replay


def _simplify(recorded: fx.GraphModule) -> fx.GraphModule:
    """Drop operations that change nothing, and compute once what does not depend on the arguments. Keeps every bit."""
    graph = recorded.graph
    graph.eliminate_dead_code()
    calls = [node for node in graph.nodes if node.op == "call_function"]
    if any(node.target._schema.is_mutable for node in calls if isinstance(node.target, OpOverload)):
        return recorded  # what is written in place must be made anew at every call
    for node in calls:
        _skip_unit_factor(node)
        same = _unchanged(node)
        if same is not None:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
        elif _is_constant(node):
            name = _CONSTANT + node.name
            recorded.register_buffer(name, _compute(recorded, node), persistent=False)
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.get_attr(name))
            graph.erase_node(node)
    graph.eliminate_dead_code()
    shared = CSEPass(get_CSE_banned_ops())(recorded)
    assert shared is not None
    found: fx.GraphModule = shared.graph_module
    return found


def _unchanged(node: fx.Node) -> fx.Node | None:
    """The input that an operation returns as it is, if it does."""
    arguments: Any = node.args
    source = arguments[0] if arguments else None
    if node.target is _aten.cat.default:
        return source[0] if source is not None and len(source) == 1 else None
    if not isinstance(source, fx.Node):
        return None
    if node.target is operator.getitem and source.target is _aten.split_with_sizes.default:
        sizes: Any = source.args[1]
        return source.args[0] if len(sizes) == 1 else None  # type: ignore[return-value]  # a model of one parameter
    if node.target is _aten.pow.Tensor_Scalar:
        return source if arguments[1] == 1 and _same_shape(node, source) else None
    if node.target is _aten.mul.Tensor:
        return source if arguments[1] == 1 and _same_shape(node, source) else None
    if node.target is _aten.t.default and source.target is _aten.t.default:
        return source.args[0]  # type: ignore[return-value]
    views = (_aten.alias.default, _aten.detach.default, _aten.view.default, _aten._unsafe_view.default)
    return source if node.target in (*views, _aten.expand.default) and _same_shape(node, source) else None


def _skip_unit_factor(node: fx.Node) -> None:
    """Let a view of ``x * 1``, which vmap makes of a bias that is part of a row, be one of x."""
    source: Any = node.args[0] if node.args else None
    if node.target is not _aten.view.default or source.target is not _aten.mul.Tensor:
        return
    value = source.args[0]
    if source.args[1] == 1 and value.meta["val"].shape == source.meta["val"].shape:
        node.target = _aten.reshape.default
        node.replace_input_with(source, value)


def _same_shape(node: fx.Node, source: fx.Node) -> bool:
    first, second = node.meta.get("val"), source.meta.get("val")
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return False
    return first.shape == second.shape and first.stride() == second.stride() and first.dtype == second.dtype


def _is_constant(node: fx.Node) -> bool:
    """Whether an operation gives the same small tensor at every call. What the module holds may change in between."""
    value, target = node.meta.get("val"), node.target
    if not isinstance(target, OpOverload) or not isinstance(value, Tensor) or value.numel() > _LARGEST_CONSTANT:
        return False
    if torch.Tag.nondeterministic_seeded in target.tags:
        return False
    own = all(source.op == "get_attr" and str(source.target).startswith(_CONSTANT) for source in node.all_input_nodes)
    return target in _SHAPE_ONLY or own


def _compute(recorded: fx.GraphModule, node: fx.Node) -> Tensor:
    """The value of an operation on constants, or on an argument of which only the shape matters."""

    def value(source: fx.Node) -> Any:
        if source.op == "get_attr":
            return getattr(recorded, str(source.target))
        known = source.meta["val"]
        return torch.empty_strided(known.shape, known.stride(), dtype=known.dtype, device=known.device)

    args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
    with torch.no_grad():
        computed: Tensor = node.target(*args, **kwargs)  # type: ignore[operator]
    return computed


def _own_results(graph: fx.Graph) -> None:
    """Copy results that are, or are views of, arguments and constants: callers may write into what they get."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    with graph.inserting_before(output):
        results = [r if _is_fresh(r) else graph.call_function(_aten.clone.default, (r,)) for r in output.args[0]]
    output.args = (results,)


def _is_fresh(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    is_view = node.target is operator.getitem or any(result.alias_info is not None for result in returns)
    return _is_fresh(node.args[0]) if is_view and isinstance(node.args[0], fx.Node) else not is_view
