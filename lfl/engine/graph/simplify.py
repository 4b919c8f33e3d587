"""Operations of a recorded step that change nothing, or are the same at every call.

Dropping an operation that returns a copy of its input lets later operations see the input itself. That is the same to
the bit if (1) nothing in the list writes in place, so that it does not matter whether two values share memory;
(2) values and type are the same; and (3) strides are the same, since the order in which a kernel adds may follow them.
``simplify`` makes sure of (1), ``_same_layout`` of (2) and (3) where an operation does not by itself. What leaves the
list is copied by ``record`` where it shares memory with an argument or a constant.
"""

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.passes.dialect.common.cse_pass import CSEPass, get_CSE_banned_ops

_aten = torch.ops.aten


_CONSTANT = "_constant_"  # begins the names of what was computed once
_LARGEST_CONSTANT = 2**16  # numbers of a constant that is worth keeping between calls
_PRODUCTS = (_aten.mul.Tensor, _aten.mul.Scalar)  # which of them vmap makes depends on torch's version
_SHAPE_ONLY = (_aten.ones_like.default, _aten.zeros_like.default, _aten.full_like.default)
_VIEWS = (
    _aten.alias.default,
    _aten.detach.default,
    _aten.view.default,
    _aten._unsafe_view.default,
    _aten.expand.default,
)


def simplify(recorded: fx.GraphModule) -> fx.GraphModule:
    """Drop operations that change nothing, and compute once what does not depend on the arguments. Keeps every bit."""
    graph = recorded.graph
    graph.eliminate_dead_code()
    calls = [node for node in graph.nodes if node.op == "call_function"]
    # With a write in place, a dropped copy would show the write in its source, and a constant would keep it.
    if any(node.target._schema.is_mutable for node in calls if isinstance(node.target, OpOverload)):
        return recorded
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
    # Common subexpressions: kernels give the same bits for the same arguments, but for random ones, which are banned.
    # Two results may then be one tensor; only gradients are ever written into, and no other result has their shape.
    shared = CSEPass(get_CSE_banned_ops())(recorded)
    assert shared is not None
    simplified: fx.GraphModule = shared.graph_module
    return simplified


def _unchanged(node: fx.Node) -> fx.Node | None:
    """The input that an operation returns as it is, if it does."""
    arguments: Any = node.args
    source = arguments[0] if arguments else None
    if node.target is _aten.cat.default:
        # Joining one tensor copies it; a copy of a strided one is contiguous, and stays.
        return source[0] if source is not None and len(source) == 1 and _same_layout(node, source[0]) else None
    if not isinstance(source, fx.Node):
        return None
    if node.target is operator.getitem and source.target is _aten.split_with_sizes.default:
        # The only part of a split is a view of the whole: a model of one parameter.
        sizes: Any = source.args[1]
        return source.args[0] if len(sizes) == 1 else None  # type: ignore[return-value]
    if node.target is _aten.pow.Tensor_Scalar:
        # torch copies for the exponent 1: -0.0, infinities and NaN included.
        return source if arguments[1] == 1 and _same_layout(node, source) else None
    if node.target in _PRODUCTS:
        # Exact in IEEE 754, -0.0, infinities, NaN and subnormal numbers included. A tensor of integers times 1.0 is one
        # of floats, and a broadcast one is larger: both have another layout. ``arguments[1]`` may be a node: not 1.
        return source if arguments[1] == 1 and _same_layout(node, source) else None
    if node.target is _aten.t.default and source.target is _aten.t.default:
        # Two views that undo each other: same memory, same strides.
        return source.args[0]  # type: ignore[return-value]
    # A view with the shape and strides of its source is its source. Replays run without autograd, so that `detach` is
    # a view like the others.
    return source if node.target in _VIEWS and _same_layout(node, source) else None


def _skip_unit_factor(node: fx.Node) -> None:
    """Let a view of ``x * 1``, which vmap makes of a bias that is part of a row, be one of x.

    ``reshape`` instead of ``view``, since x may have strides that no view fits. The numbers are the same; strides may
    be others. What follows is the addition of a bias, whose result does not depend on them, and the comparison at the
    second call, to the bit, stands behind it.
    """
    source: Any = node.args[0] if node.args else None
    if node.target is not _aten.view.default or source.target not in _PRODUCTS:
        return
    value = source.args[0]
    if source.args[1] == 1 and _same_type(source, value):
        node.target = _aten.reshape.default
        node.replace_input_with(source, value)


def _same_type(node: fx.Node, source: fx.Node) -> bool:
    first, second = node.meta.get("val"), source.meta.get("val")
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return False
    return first.shape == second.shape and first.dtype == second.dtype


def _same_layout(node: fx.Node, source: fx.Node) -> bool:
    """Whether two values have the same shape, type and strides."""
    if not _same_type(node, source):
        return False
    same: bool = node.meta["val"].stride() == source.meta["val"].stride()
    return same


def _is_constant(node: fx.Node) -> bool:
    """Whether an operation gives the same small tensor at every call.

    It does if it reads the shape of its argument alone, since a recording serves one shape, or nothing but constants,
    and draws no random numbers. What the module holds (buffers, frozen parameters) is no constant: it may be changed
    between calls.
    """
    value, target = node.meta.get("val"), node.target
    if not isinstance(target, OpOverload) or not isinstance(value, Tensor) or value.numel() > _LARGEST_CONSTANT:
        return False
    if torch.Tag.nondeterministic_seeded in target.tags:
        return False
    # An operation without inputs (`arange`, `full`) is one on nothing but constants.
    own = all(source.op == "get_attr" and str(source.target).startswith(_CONSTANT) for source in node.all_input_nodes)
    return target in _SHAPE_ONLY or own


def _compute(recorded: fx.GraphModule, node: fx.Node) -> Tensor:
    """The value of an operation on constants, or on an argument of which only the shape matters."""

    def value(source: fx.Node) -> Any:
        if source.op == "get_attr":
            return getattr(recorded, str(source.target))
        known = source.meta["val"]
        # With the strides too: `ones_like` gives its result those of its argument.
        return torch.empty_strided(known.shape, known.stride(), dtype=known.dtype, device=known.device)

    args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
    with torch.no_grad():
        computed: Tensor = node.target(*args, **kwargs)  # type: ignore[operator]
    return computed
