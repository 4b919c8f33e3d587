"""Layers that vmap cannot batch, or batches one client after another, in terms of operations that it can.

torch's attention and its recurrent layers are single operations, without a rule for vmap. They are computed here from
products of matrices and the like, of which vmap makes one operation for all clients. Outside of vmap torch's own are
faster, and are called. Dropout inside of them is left to ``F.dropout``, which draws from a client's key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def is_batched() -> bool:
    """Whether this is called under vmap."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``F.scaled_dot_product_attention``; the arguments are its own."""
    if not dropout_p and not is_batched():
        options: dict[str, Any] = {"enable_gqa": True} if enable_gqa else {}  # new in torch 2.5
        with torch._C.DisableTorchFunction():
            return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, scale=scale, **options)
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is None:
        weights = scores.softmax(-1)
    else:
        masked = attn_mask.logical_not() if attn_mask.dtype == torch.bool else attn_mask == -math.inf
        # A query that may look at nothing gets zeros, as in torch. Its scores are set to zero, since the gradient of a
        # softmax over nothing is nan.
        nothing = masked.all(-1, keepdim=True)
        scores = scores if attn_mask.dtype == torch.bool else scores + attn_mask.masked_fill(masked, 0.0)
        weights = scores.masked_fill(masked & ~nothing, -math.inf).softmax(-1).masked_fill(nothing, 0.0)
    return F.dropout(weights, dropout_p) @ value


class _Weights(NamedTuple):
    """Those of one layer in one direction; biases, and what an LSTM projects its output with, may be missing."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None
    hidden_bias: Tensor | None
    projection: Tensor | None


State = tuple[Tensor, ...]
"""The tensors that a layer hands from step to step: h, and c of an LSTM, [b, H] each."""


def recurrent(layer: Callable[..., Any], cell: Callable[..., State], *arguments: Any) -> Any:
    """``torch.lstm``, ``torch.gru``, ``torch.rnn_tanh`` or ``torch.rnn_relu``; layer by layer if there is dropout.

    Args:
        layer: torch's own.
        cell: computes one step from what the input adds to the gates [b, ...], the state, and the weights.
        arguments: of ``layer``.
    """
    is_packed = not isinstance(arguments[3], bool)  # then the second one is the sizes of batches
    if is_packed or not (is_batched() or (arguments[5] and arguments[6] and arguments[4] > 1)):
        return _own(layer, *arguments)
    input, start, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first = arguments
    states = list(zip(*(part.unbind(0) for part in _as_tuple(start)), strict=True))
    directions = 2 if bidirectional else 1
    per_layer = len(weights) // num_layers
    outputs, ends = input, []
    for number in range(num_layers):
        own = weights[number * per_layer : (number + 1) * per_layer]
        first = states[number * directions : (number + 1) * directions]
        if is_batched():
            outputs, last = _layer(cell, outputs, first, own, has_biases, batch_first)
        else:
            start = tuple(torch.stack(parts) for parts in zip(*first, strict=True))
            start = start if layer is torch.lstm else start[0]
            outputs, *rest = _own(layer, outputs, start, own, has_biases, 1, 0.0, train, bidirectional, batch_first)
            last = list(zip(*(part.unbind(0) for part in rest), strict=True))
        ends += last
        if train and dropout and number < num_layers - 1:
            outputs = F.dropout(outputs, dropout)
    return (outputs, *(torch.stack(parts) for parts in zip(*ends, strict=True)))


def _own(layer: Callable[..., Any], *arguments: Any) -> Any:
    """Call torch's own layer, unseen by the mode in which this one stands in for it."""
    with torch._C.DisableTorchFunction():
        return layer(*arguments)


def _layer(
    cell: Callable[..., State],
    input: Tensor,
    states: list[State],
    weights: list[Tensor],
    has_biases: bool,
    batch_first: bool,
) -> tuple[Tensor, list[State]]:
    """One layer, in one direction or both: outputs, and the last state of each direction."""
    steps = 1 if batch_first else 0
    size = len(weights) // len(states)
    outputs, ends = [], []
    for number, state in enumerate(states):
        own = _weights(weights[number * size : (number + 1) * size], has_biases)
        gates = F.linear(input, own.input, own.input_bias).unbind(steps)
        found = []
        for gate in gates if number == 0 else reversed(gates):
            state = cell(gate, state, own)
            found.append(state[0])
        ends.append(state)
        outputs.append(torch.stack(found if number == 0 else found[::-1], steps))
    return torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0], ends


def _weights(weights: list[Tensor], has_biases: bool) -> _Weights:
    biases = weights[2:4] if has_biases else [None, None]
    projection = weights[4 if has_biases else 2 :]
    return _Weights(weights[0], weights[1], biases[0], biases[1], projection[0] if projection else None)


def _lstm_cell(gates: Tensor, state: State, weights: _Weights) -> State:
    hidden, memory = state
    gates = gates + F.linear(hidden, weights.hidden, weights.hidden_bias)
    take, keep, new, show = gates.chunk(4, -1)
    memory = keep.sigmoid() * memory + take.sigmoid() * new.tanh()
    hidden = show.sigmoid() * memory.tanh()
    return hidden if weights.projection is None else F.linear(hidden, weights.projection), memory


def _gru_cell(gates: Tensor, state: State, weights: _Weights) -> State:
    (hidden,) = state
    reset, update, new = gates.chunk(3, -1)
    own_reset, own_update, own_new = F.linear(hidden, weights.hidden, weights.hidden_bias).chunk(3, -1)
    fresh = (new + (reset + own_reset).sigmoid() * own_new).tanh()
    return ((hidden - fresh) * (update + own_update).sigmoid() + fresh,)


def _tanh_cell(gates: Tensor, state: State, weights: _Weights) -> State:
    return ((gates + F.linear(state[0], weights.hidden, weights.hidden_bias)).tanh(),)


def _relu_cell(gates: Tensor, state: State, weights: _Weights) -> State:
    return ((gates + F.linear(state[0], weights.hidden, weights.hidden_bias)).relu(),)


def _as_tuple(state: Any) -> tuple[Tensor, ...]:
    return (state,) if isinstance(state, Tensor) else tuple(state)


def _bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ``torch.nn.functional`` written in Python, without the question at its head who else handles it.

    With it, a mode would see the function as a whole, and none of the functions that it calls.
    """
    assert isinstance(function, FunctionType)
    names = {**function.__globals__, "has_torch_function": lambda _arguments: False}
    bare = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    bare.__kwdefaults__ = function.__kwdefaults__
    return bare


def _as_layer(layer: Callable[..., Any], cell: Callable[..., State]) -> Callable[..., Any]:
    return lambda *arguments: recurrent(layer, cell, *arguments)


LAYERS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: attention,
    F.multi_head_attention_forward: _bare(F.multi_head_attention_forward),
    torch.lstm: _as_layer(torch.lstm, _lstm_cell),
    torch.gru: _as_layer(torch.gru, _gru_cell),
    torch.rnn_tanh: _as_layer(torch.rnn_tanh, _tanh_cell),
    torch.rnn_relu: _as_layer(torch.rnn_relu, _relu_cell),
}
"""Functions that stand in for functions of torch; to be called where a mode sees what they call."""
