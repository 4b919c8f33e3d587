"""The operations of torch, each with what it does to the examples of a batch.

An operation that is not listed here mixes them, whatever it does: nothing is assumed.
"""

from collections.abc import Iterable

import torch

from lfl.engine.graph.arithmetic import (
    Rule,
    add,
    along,
    convert,
    divide,
    expanded,
    filled,
    joined,
    moved,
    multiply,
    numbered,
    pointwise,
    product,
    summed,
    viewed,
)
from lfl.engine.graph.examples import RANDOM, SELECTS, Call, Examples, mixed
from lfl.engine.graph.layers import (
    attention,
    batch_norm,
    distances,
    embedded,
    entry_loss,
    examples_first,
    gathered,
    indexed,
    layer_norm,
    margin_loss,
    nll_loss,
    padded,
    recurrent,
    trailing,
)


def _table(*parts: tuple[Rule, str]) -> dict[str, Rule]:
    return {name: rule for rule, names in parts for name in names.split()}


_VIEW = "view _unsafe_view reshape _reshape_alias unsqueeze squeeze"
_FILL = (
    "zeros ones full empty new_zeros new_ones new_full new_empty zeros_like ones_like full_like empty_like zero fill "
    "scalar_tensor"
)
# Losses that return something else besides.
LOSSES = frozenset(("nll_loss_forward", "nll_loss2d_forward", "multilabel_margin_loss_forward"))
# Operations whose whole numbers are sizes, which may follow b: what they are shows in the shape of the result.
SIZED = frozenset(f"{_VIEW} {_FILL} expand repeat arange native_group_norm affine_grid_generator".split())

RULES: dict[str, Rule] = _table(
    (add, "add sub rsub"),
    (multiply, "mul"),
    (divide, "div true_divide"),
    (convert, "_to_copy clone detach alias lift_fresh_copy lift_fresh neg positive contiguous to"),
    # Those that torch does not mark as pointwise, or that torch 2.4 did not.
    (
        pointwise,
        "masked_fill where clamp copy floor_divide log_sigmoid_forward _prelu_kernel leaky_relu elu celu selu gelu "
        "silu mish softplus hardtanh hardswish hardsigmoid hardshrink softshrink threshold relu6 logit",
    ),
    (viewed, _VIEW),
    (moved, "permute transpose t movedim"),
    (expanded, "expand repeat"),
    (filled, _FILL),
    (numbered, "arange"),
    (joined, "cat stack"),
    (
        along(linear=True),
        "select slice narrow split split_with_sizes unsafe_split unsafe_split_with_sizes unbind flip roll unfold "
        "diagonal",
    ),
    (
        along(linear=False),
        "_softmax _log_softmax _safe_softmax cumsum cumprod logcumsumexp cummax cummin sort topk argsort kthvalue mode "
        "median nanmedian glu amax amin max min aminmax prod logsumexp var std var_mean std_mean norm "
        "linalg_vector_norm argmax argmin any all _fft_r2c _fft_c2c _fft_c2r",
    ),
    (summed, "sum mean"),
    (product("self", "mat2", "ij,jk->ik"), "mm"),
    (product("self", "mat2", "bij,bjk->bik"), "bmm"),
    (product("self", "vec", "ij,j->i"), "mv"),
    (product("self", "tensor", "i,i->"), "dot"),
    (product("self", "other", "i,i->"), "vdot"),
    (product("mat1", "mat2", "ij,jk->ik", added_to="self"), "addmm"),
    (product("batch1", "batch2", "bij,bjk->bik", added_to="self"), "baddbmm"),
    (product("mat", "vec", "ij,j->i", added_to="self"), "addmv"),
    (examples_first("input"), "convolution _convolution native_group_norm"),
    (examples_first("input", "grid"), "grid_sampler_2d grid_sampler_3d"),
    (examples_first("self"), "im2col col2im"),
    (examples_first("theta"), "affine_grid_generator"),
    (trailing(1), "avg_pool1d adaptive_avg_pool1d max_pool1d upsample_nearest1d upsample_linear1d"),
    (trailing(1), "reflection_pad1d replication_pad1d"),
    (
        trailing(2),
        "avg_pool2d _adaptive_avg_pool2d max_pool2d max_pool2d_with_indices adaptive_max_pool2d upsample_nearest2d "
        "upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa reflection_pad2d "
        "replication_pad2d tril triu _linalg_det _linalg_svd _linalg_eigh linalg_inv_ex linalg_cholesky_ex",
    ),
    (
        trailing(3),
        "avg_pool3d _adaptive_avg_pool3d max_pool3d_with_indices adaptive_max_pool3d upsample_nearest3d "
        "upsample_trilinear3d reflection_pad3d replication_pad3d pixel_shuffle pixel_unshuffle",
    ),
    (layer_norm, "native_layer_norm _fused_rms_norm"),
    (padded, "constant_pad_nd"),
    (
        batch_norm,
        "native_batch_norm cudnn_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
        "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update",
    ),
    (
        attention,
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
    ),
    (recurrent, "mkldnn_rnn_layer _cudnn_rnn"),
    (examples_first("input_gates", "hidden_gates", "cx", "hx"), "_thnn_fused_lstm_cell _thnn_fused_gru_cell"),
    (distances, "_cdist_forward"),
    (embedded, "embedding"),
    (gathered, "gather scatter scatter_add"),
    (indexed, "index _unsafe_index"),
    (
        entry_loss,
        "mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss",
    ),
    (margin_loss, "multi_margin_loss multilabel_margin_loss_forward"),
    (nll_loss, "nll_loss_forward nll_loss2d_forward"),
)


def examples_of(call: Call, tags: Iterable[torch.Tag]) -> Examples:
    """All that is known of the result of an operation.

    Args:
        call: the operation.
        tags: what torch says of it.
    """
    rule = RULES.get(call.name)
    if torch.Tag.nondeterministic_seeded in tags and rule is not attention and rule is not recurrent:
        return RANDOM
    if torch.Tag.dynamic_output_shape in tags and rule is not indexed:
        return SELECTS
    if rule is None and torch.Tag.pointwise in tags:
        rule = pointwise
    return rule(call) if rule is not None else mixed("uses an operation that is not known to keep examples apart")
