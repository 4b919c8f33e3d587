"""What operations do to the examples of a batch.

Each rule takes what is known of the operands of an operation and says what is known of its result; what it cannot show
is mixed. An operation without a rule mixes, whatever it does: nothing is assumed. Names of arguments are those of
torch's operators.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import fx

from lfl.engine.graph.examples import MANY, ROWS, SHARED, Call, Examples, Operand, mixed

Rule = Callable[[Call], Examples]

_ACROSS = mixed("looks across the examples of the batch")
_BESIDE = mixed("sets examples beside other examples")
_CURVED = mixed("is not linear in a sum or a mean over the batch")
_DIVIDES = mixed("divides by a number that depends on the data")
_PLACES = mixed("picks examples by their place in the batch")
_NUMBERS = mixed("depends on the places of the examples in the batch")
_RANDOM = mixed("draws random numbers for the batch as a whole")
_BESIDE_ALL = mixed("uses a sum or a mean over the batch beside each example")


def _together(operands: Iterable[Operand]) -> Examples:
    """What becomes of operands that are broadcast and computed entry by entry; their powers are left out."""
    operands = list(operands)
    for operand in operands:
        if operand.known.kind == "mixed":
            return operand.known
    kinds = {operand.known.kind for operand in operands}
    if "position" in kinds:
        return _NUMBERS
    if "rows" not in kinds:
        return Examples("sum") if "sum" in kinds else SHARED
    if "sum" in kinds:
        return _BESIDE_ALL
    # Broadcasting aligns axes at the end.
    rows = {(o.axis - o.dim, o.known.blocks) for o in operands if o.known.kind == "rows"}
    return replace(ROWS, blocks=rows.pop()[1]) if len(rows) == 1 else _BESIDE


def _curved(operands: Iterable[Operand]) -> Examples:
    """As ``_together``, for an operation that is not linear."""
    operands = list(operands)
    result = _together(operands)
    if result.kind == "sum":
        return _CURVED
    return MANY if result.kind != "mixed" and any(o.known.power for o in operands) else result


def _pointwise(call: Call) -> Examples:
    return _curved(call.all_operands)


def _added(operands: list[Operand]) -> Examples:
    """The sum of operands, or what lists them. A mean may have something shared added to it, as the mean of that."""
    result = _together(operands)
    if result.kind == "mixed":
        return result
    # A shared number is a sum over the examples of a b-th of it.
    means = result.kind == "sum"
    powers = {o.known.power - (means and o.known.kind == "shared") for o in operands}
    return replace(result, power=powers.pop()) if len(powers) == 1 else MANY


def _add(call: Call) -> Examples:
    others = [o for name, part in call.operands.items() if name not in ("self", "other") for o in part]
    return MANY if others else _added([_first(call, "self"), _first(call, "other")])


def _first(call: Call, name: str) -> Operand:
    """The operand of an argument; a number that is the same in both listings is shared."""
    return call.operands[name][0] if call.operands.get(name) else Operand(SHARED)


def _multiply(call: Call) -> Examples:
    operands = [_first(call, "self"), _first(call, "other")]
    result = _together(operands)
    if result.kind == "sum" and all(o.known.kind == "sum" for o in operands):
        return _CURVED
    return result if result.kind == "mixed" else replace(result, power=sum(o.known.power for o in operands))


def _divide(call: Call) -> Examples:
    top, bottom = _first(call, "self"), _first(call, "other")
    if bottom.known.kind == "sum" or bottom.known.reason == _CURVED.reason:
        return _DIVIDES
    if call.get("rounding_mode") is not None:
        return _pointwise(call)
    result = _together([top, bottom])
    return result if result.kind == "mixed" else replace(result, power=top.known.power - bottom.known.power)


def _convert(call: Call) -> Examples:
    """Copies, and conversions; to integers, of a sum, they round."""
    source = call.operand("self")
    dtype = call.get("dtype") or source.dtype
    return source.known if dtype == source.dtype or dtype.is_floating_point else _curved([source])


# -- shapes -----------------------------------------------------------------------------------------------------------


def _moved(call: Call) -> Examples:
    """Axes are moved as a whole."""
    return call.operand("self").known


def _viewed(call: Call) -> Examples:
    """Axes are joined or cut, in the order of the entries."""
    source, (shapes,) = call.operand("self"), call.shapes
    if source.known.kind not in ("rows", "position") or source.axis < 0:
        return source.known
    axis = Operand(ROWS, shapes).axis if len(shapes[0]) == len(shapes[1]) else -1
    if axis < 0:
        return mixed("cuts the batch into parts")
    # All that lies before the batch: the blocks of its axis, and the axes in front of it.
    before = source.known.blocks * math.prod(source.shapes[0][: source.axis])
    blocks, rest = divmod(before, math.prod(shapes[0][:axis]))
    if rest or (source.known.kind == "position" and blocks != 1):
        return mixed("cuts the batch into parts")
    return replace(source.known, blocks=blocks)


def _expanded(call: Call) -> Examples:
    """What is shared is the same for every example."""
    source, (shapes,) = call.operand("self"), call.shapes
    known = source.known
    if known.kind in ("rows", "position"):
        place = source.axis - source.dim  # from the end: new axes come in front
        return known if shapes[0][place] == source.shapes[0][place] else mixed("repeats the examples of the batch")
    if known.kind == "shared" and shapes[0] != shapes[1]:
        return replace(ROWS, power=known.power)
    return known


def _filled(call: Call) -> Examples:
    """One number everywhere."""
    (shapes,) = call.shapes
    value = _added([Operand(SHARED), *(o for name, part in call.operands.items() if name != "self" for o in part)][-1:])
    if value.kind != "shared" or shapes[0] == shapes[1]:
        return value
    # As many blocks as what it is to look like; any number would do.
    blocks = call.operand("self").known.blocks if call.name in ("zero", "fill") or call.name.endswith("_like") else 1
    return replace(ROWS, power=value.power, blocks=blocks)


def _arange(call: Call) -> Examples:
    count = call.shapes[0] == ((call.sizes[0],), (call.sizes[1],))
    ends = call.get("start", 0) == 0 and call.get("step", 1) == 1 and call.get("end") == call.sizes[0]
    return Examples("position") if count and ends else _NUMBERS


def _joined(call: Call) -> Examples:
    """``cat`` and ``stack``, of tensors of one shape but for the axis along which they are joined."""
    operands = call.operands["tensors"]
    first = operands[0]
    if call.name == "cat" and first.known.kind == "rows" and first.axis == first.number(call.get("dim", 0)):
        return mixed("joins batches")
    return _added(operands)


# -- along axes -------------------------------------------------------------------------------------------------------


def _axes(call: Call) -> set[int]:
    """The axes of ``self`` that an operation works along; all of them where it names none."""
    source = call.operand("self")
    named = [call.arguments[name] for name in ("dim", "dims", "dimension", "dim1", "dim2") if name in call.arguments]
    numbers = [n for part in named if part is not None for n in (part if isinstance(part, list | tuple) else [part])]
    return {source.number(n) for n in numbers} or set(range(source.dim))


def _along(linear: bool) -> Rule:
    """The rule of an operation that works along axes and leaves the others apart."""

    def rule(call: Call) -> Examples:
        source = call.operand("self")
        kept = source.known if linear else _curved(call.all_operands)
        if source.known.kind not in ("rows", "position") or kept.kind == "mixed" or source.axis not in _axes(call):
            return kept
        if call.name == "slice" and source.shapes == call.shapes[0]:
            return kept
        return _PLACES if linear else _ACROSS

    return rule


def _summed(call: Call) -> Examples:
    source = call.operand("self")
    known = _convert(call)  # to another type first, where one is named
    if known.kind == "position":
        return _NUMBERS
    if known.kind != "rows" or source.axis not in _axes(call):
        return known
    if call.name == "sum" and source.shapes == ((call.sizes[0],), (call.sizes[1],)) and _counts_targets(call.node):
        # b, or else one of the targets is ignored: that example alone gives 0 / 0, which does not go unnoticed.
        return replace(SHARED, power=1)
    return Examples("sum", power=known.power - (call.name == "mean"))


def _counts_targets(node: fx.Node) -> bool:
    """Whether a sum counts the targets that are not ignored, one an example, as in cross entropy with smoothing."""
    kept = node.args[0]
    if not isinstance(kept, fx.Node) or _name(kept) != "bitwise_not":
        return False
    ignored = kept.args[0]
    return (
        isinstance(ignored, fx.Node)
        and _name(ignored) == "eq"
        and any(_name(n) == "masked_fill_" for n in ignored.users)
    )


def _name(node: fx.Node) -> str:
    return str(getattr(getattr(node.target, "overloadpacket", None), "__name__", ""))


# -- products ---------------------------------------------------------------------------------------------------------


def _contracted(first: Operand, second: Operand, spec: str) -> Examples:
    """A product in Einstein's notation. Over the batch it is a sum of the examples' products."""
    inputs, output = spec.split("->")
    letters = inputs.split(",")
    for operand in (first, second):
        if operand.known.kind == "mixed":
            return operand.known
    kinds = [first.known.kind, second.known.kind]
    power = first.known.power + second.known.power
    if "position" in kinds:
        return _NUMBERS
    if "rows" not in kinds:
        return _CURVED if kinds == ["sum", "sum"] else Examples("sum" if "sum" in kinds else "shared", power)
    if "sum" in kinds:
        return _BESIDE_ALL
    rows = [(o, part[o.axis]) for o, part in zip((first, second), letters, strict=True) if o.known.kind == "rows"]
    if len({(letter, o.known.blocks) for o, letter in rows}) > 1:
        return mixed("compares examples with one another")
    letter, blocks = rows[0][1], rows[0][0].known.blocks
    return replace(ROWS, power=power, blocks=blocks) if letter in output else Examples("sum", power)


def _product(first: str, second: str, spec: str, added: str = "") -> Rule:
    """The rule of a product of two arguments, to which a third may be added."""

    def rule(call: Call) -> Examples:
        result = _contracted(call.operand(first), call.operand(second), spec)
        if not added or result.kind == "mixed":
            return result
        if call.operands.keys() - {first, second, added}:  # a factor that depends on b
            return MANY
        return _added([Operand(result, call.shapes[0]), call.operand(added)])

    return rule


# -- example by example -----------------------------------------------------------------------------------------------


def _apart(call: Call, axes: dict[str, Iterable[int]], reason: Examples = _ACROSS) -> Examples:
    """An operation that keeps the batch apart where it is one of these axes of these arguments, and shares the rest."""
    blocks = set()
    for name, operands in call.operands.items():
        for operand in operands:
            kind = operand.known.kind
            if kind == "mixed":
                return operand.known
            if kind == "sum":
                return _CURVED
            if operand.known.power:
                return MANY
            if kind == "position" or (kind == "rows" and operand.axis not in axes.get(name, ())):
                return reason
            if kind == "rows":
                blocks.add(operand.known.blocks)
    return replace(ROWS, blocks=blocks.pop()) if len(blocks) == 1 else _BESIDE


def _trailing(count: int) -> Rule:
    """The rule of an operation on the last axes of its first argument."""

    def rule(call: Call) -> Examples:
        name = next(iter(call.operands))
        return _apart(call, {name: range(call.operand(name).dim - count)})

    return rule


def _examples_first(*names: str) -> Rule:
    """The rule of an operation on examples that lie along the first axis of these arguments."""
    return lambda call: _apart(call, dict.fromkeys(names, (0,)))


def _layer_norm(call: Call) -> Examples:
    source = call.operand("input")
    return _apart(call, {"input": range(source.dim - len(call.get("normalized_shape")))})


def _padded(call: Call) -> Examples:
    source = call.operand("self")
    return _apart(call, {"self": range(source.dim - len(call.get("pad")) // 2)})


def _batch_norm(call: Call) -> Examples:
    if call.get("training", call.name == "_batch_norm_with_update"):
        # Statistics of each channel: of examples that are channels, as in instance normalisation, they are their own.
        axes: dict[str, Iterable[int]] = {"input": (1,), "weight": (0,), "bias": (0,)}
        return _apart(call, axes, mixed("normalises with statistics of the whole batch"))
    return _apart(call, {"input": (0, 2, 3, 4)})


def _attention(call: Call) -> Examples:
    if call.get("dropout_p"):
        return _RANDOM
    rows = {o.axis for o in call.all_operands if o.known.kind == "rows"}
    return _apart(call, dict.fromkeys(call.operands, (0, 1))) if len(rows) == 1 else _BESIDE


def _recurrent(call: Call) -> Examples:
    """Layers of torch's recurrent networks, over time and examples."""
    if call.get("dropout"):
        return _RANDOM
    if call.get("batch_sizes"):
        return _ACROSS  # packed sequences have no axis for the batch
    first = call.name == "_cudnn_rnn" and call.get("batch_first")
    source = {"input": (0,) if first else (1,)}
    return _apart(
        call, source | {name: (call.operand(name).dim - 2,) for name in call.operands if name[:2] in ("hx", "cx")}
    )


def _distances(call: Call) -> Examples:
    first, second = call.operand("x1"), call.operand("x2")
    batch = "abcdefgh"[: first.dim - 2]
    result = _contracted(first, second, f"{batch}pr,{batch}qr->{batch}pq") if first.dim == second.dim else _BESIDE
    return _CURVED if result.kind == "sum" else MANY if result.power else result


# -- indices ----------------------------------------------------------------------------------------------------------


def _embedded(call: Call) -> Examples:
    if call.get("scale_grad_by_freq"):
        return mixed("scales gradients by how often an index occurs in the batch")
    return _apart(call, {"indices": range(call.operand("indices").dim)})


def _gathered(call: Call) -> Examples:
    """``gather`` and ``scatter``: entries stay in their places along all axes but one."""
    operands = call.all_operands
    tensors = [operand for operand in operands if operand.dtype is not None]
    result = _curved(operands)
    if result.kind != "rows":
        return result
    # Of a shared tensor each example would read, or write, the line of its own place; so it would of a longer one.
    places = {(o.axis, o.dim, o.shapes[0][o.axis]) if o.known.kind == "rows" else () for o in tensors}
    apart = len(places) == 1 and tensors[0].axis != tensors[0].number(call.get("dim"))
    return result if apart else _PLACES


def _indexed(call: Call) -> Examples:
    """``x[i, j, ...]`` with tensors of numbers."""
    source, indices = call.operand("self"), call.get("indices")
    given = [index for index in indices if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for index in given):
        return mixed("picks entries by a condition on the data")
    if source.known.kind != "rows":
        result = _curved(given)
        return source.known if result == SHARED or source.known.kind == "mixed" else _curved([*given, source])
    own = indices[source.axis] if source.axis < len(indices) else None
    if own is None:
        return source.known if _curved(given) == SHARED else mixed("compares examples with one another")
    if own.known.kind != "position" or source.known.blocks != 1 or source.shapes[0][source.axis] != call.sizes[0]:
        return _PLACES
    # Each example at its own place: the number of the place is like something of the example's own.
    picked = [replace(i, known=ROWS) if i.known.kind == "position" else i for i in given]
    result = _curved(picked)
    return result if result.kind == "mixed" else replace(result, power=source.known.power)


# -- losses -----------------------------------------------------------------------------------------------------------


def _reduced(call: Call, rows: Examples) -> Examples:
    """A loss of each example, listed, averaged or added."""
    if rows.kind != "rows" or call.get("reduction") == 0:
        return rows
    return Examples("sum", power=-1 if call.get("reduction") == 1 else 0)


def _entry_loss(call: Call) -> Examples:
    return _reduced(call, _pointwise(call))


def _margin_loss(call: Call) -> Examples:
    return _reduced(call, _apart(call, {"self": (0,), "target": (0,)}))


def _nll_loss(call: Call) -> Examples:
    rows = _apart(call, {"self": (0,), "target": (0,)})
    if rows.kind != "rows" or call.get("reduction") != 1:
        return _reduced(call, rows)
    if call.operands.get("weight"):
        return mixed("divides by the sum of its targets' class weights, which depends on the data")
    target = call.operand("target")
    if target.dim != 1 or target.shapes[0][0] != call.sizes[0]:
        return mixed("divides by the number of targets that are not ignored, which depends on the data")
    # A target that is ignored gives nan alone, which does not go unnoticed.
    return Examples("sum", power=-1)


# -- which operation has which rule -----------------------------------------------------------------------------------


def _table(*parts: tuple[Rule, str]) -> dict[str, Rule]:
    return {name: rule for rule, names in parts for name in names.split()}


_VIEW = "view _unsafe_view reshape _reshape_alias unsqueeze squeeze"
_FILL = "zeros ones full new_zeros new_ones new_full zeros_like ones_like full_like zero fill scalar_tensor"
# Losses that return something else besides.
LOSSES = frozenset(("nll_loss_forward", "nll_loss2d_forward", "multilabel_margin_loss_forward"))
# Operations whose whole numbers are sizes, which may follow b: what they are shows in the shape of the result.
SIZED = frozenset(f"{_VIEW} {_FILL} expand repeat arange native_group_norm".split())

RULES: dict[str, Rule] = _table(
    (_add, "add sub rsub"),
    (_multiply, "mul"),
    (_divide, "div true_divide"),
    (_convert, "_to_copy clone detach alias lift_fresh_copy lift_fresh neg positive contiguous to"),
    (_pointwise, "masked_fill where clamp copy"),
    (_viewed, _VIEW),
    (_moved, "permute transpose t movedim"),
    (_expanded, "expand repeat"),
    (_filled, _FILL),
    (_arange, "arange"),
    (_joined, "cat stack"),
    (
        _along(linear=True),
        "select slice narrow split split_with_sizes unsafe_split unsafe_split_with_sizes unbind flip roll unfold "
        "diagonal",
    ),
    (
        _along(linear=False),
        "_softmax _log_softmax _safe_softmax cumsum cumprod logcumsumexp cummax cummin sort topk argsort kthvalue mode median "
        "nanmedian glu amax amin max min aminmax prod logsumexp var std var_mean std_mean norm linalg_vector_norm "
        "argmax argmin any all",
    ),
    (_summed, "sum mean"),
    (_product("self", "mat2", "ij,jk->ik"), "mm"),
    (_product("self", "mat2", "bij,bjk->bik"), "bmm"),
    (_product("self", "vec", "ij,j->i"), "mv"),
    (_product("self", "tensor", "i,i->"), "dot"),
    (_product("self", "other", "i,i->"), "vdot"),
    (_product("mat1", "mat2", "ij,jk->ik", added="self"), "addmm"),
    (_product("batch1", "batch2", "bij,bjk->bik", added="self"), "baddbmm"),
    (_product("mat", "vec", "ij,j->i", added="self"), "addmv"),
    (_examples_first("input"), "convolution _convolution native_group_norm"),
    (_examples_first("input", "grid"), "grid_sampler_2d grid_sampler_3d"),
    (_examples_first("self"), "im2col col2im"),
    (_trailing(1), "avg_pool1d adaptive_avg_pool1d max_pool1d upsample_nearest1d upsample_linear1d"),
    (_trailing(1), "reflection_pad1d replication_pad1d"),
    (
        _trailing(2),
        "avg_pool2d _adaptive_avg_pool2d max_pool2d max_pool2d_with_indices adaptive_max_pool2d upsample_nearest2d "
        "upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa reflection_pad2d "
        "replication_pad2d tril triu",
    ),
    (
        _trailing(3),
        "avg_pool3d _adaptive_avg_pool3d max_pool3d_with_indices adaptive_max_pool3d upsample_nearest3d "
        "upsample_trilinear3d reflection_pad3d replication_pad3d pixel_shuffle pixel_unshuffle",
    ),
    (_layer_norm, "native_layer_norm _fused_rms_norm"),
    (_padded, "constant_pad_nd"),
    (
        _batch_norm,
        "native_batch_norm cudnn_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
        "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update",
    ),
    (
        _attention,
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
    ),
    (_recurrent, "mkldnn_rnn_layer _cudnn_rnn"),
    (_examples_first("input_gates", "hidden_gates", "cx", "hx"), "_thnn_fused_lstm_cell _thnn_fused_gru_cell"),
    (_distances, "_cdist_forward"),
    (_embedded, "embedding"),
    (_gathered, "gather scatter scatter_add"),
    (_indexed, "index"),
    (
        _entry_loss,
        "mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss",
    ),
    (_margin_loss, "multi_margin_loss multilabel_margin_loss_forward"),
    (_nll_loss, "nll_loss_forward nll_loss2d_forward"),
)


def examples_of(call: Call, tags: Iterable[torch.Tag]) -> Examples:
    """What is known of the result of an operation.

    Args:
        call: the operation.
        tags: what torch says of it.
    """
    rule = RULES.get(call.name)
    if torch.Tag.nondeterministic_seeded in tags and rule is not _attention and rule is not _recurrent:
        return _RANDOM
    if torch.Tag.dynamic_output_shape in tags and rule is not _indexed:
        return mixed("picks entries by a condition on the data")
    if rule is None and torch.Tag.pointwise in tags:
        rule = _pointwise
    return rule(call) if rule is not None else mixed("uses an operation that is not known to keep examples apart")
