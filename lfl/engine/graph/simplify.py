"""Operations of a recorded step that change nothing, or are the same at every call."""

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.passes.dialect.common.cse_pass import CSEPass, get_CSE_banned_ops

_aten = torch.ops.aten


_CONSTANT = "_constant_"  # begins the names of what was computed once
_LARGEST_CONSTANT = 2**16  # numbers of a constant that is worth keeping between calls
_SHAPE_ONLY = (_aten.ones_like.default, _aten.zeros_like.default, _aten.full_like.default)


def simplify(recorded: fx.GraphModule) -> fx.GraphModule:
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
