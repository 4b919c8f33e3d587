"""Attention and recurrent layers as vmap can batch them: torch's own numbers, and dropout by a client's key."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lfl.client.batched_ops import is_batched
from lfl.client.random_ops import ClientRandom

KEY = torch.tensor(7)
CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()
FIRST = torch.arange(5) < torch.tensor([5, 3])[:, None]  # two examples, of 5 and 3 tokens

IS_OLD = "enable_gqa" not in (F.scaled_dot_product_attention.__doc__ or "")
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "bool, 2 dimensions": {"attn_mask": CAUSAL},
    "float, 2 dimensions": {"attn_mask": torch.zeros(5, 5, dtype=torch.float64).masked_fill(~CAUSAL, -torch.inf)},
    "of examples": {"attn_mask": FIRST[:, None, None]},
    "of examples, causal": {"attn_mask": FIRST[:, None, None] & CAUSAL},
    "a query that may look at nothing": {"attn_mask": CAUSAL & (torch.arange(5) > 0)[:, None]},
    "scaled": {"scale": 0.3},
}


def heads(*shape: int) -> list[Tensor]:
    draws = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, 5, 4, dtype=torch.float64, generator=draws, requires_grad=True) for _ in range(3)]


def attend(*inputs: Tensor, **options: Any) -> Tensor:
    with ClientRandom(KEY):
        return F.scaled_dot_product_attention(*inputs, **options)


@pytest.mark.parametrize("mask", MASKS)
def test_attention_of_clients_together_is_torch_s(mask: str) -> None:
    if IS_OLD and mask == "a query that may look at nothing":
        pytest.skip("torch 2.4 gives NaN")
    inputs, options = heads(3, 2, 2), MASKS[mask]
    together = vmap(lambda *x: attend(*x, **options), randomness="error")(*inputs)
    alone = torch.stack([F.scaled_dot_product_attention(*x, **options) for x in zip(*inputs, strict=True)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    weights = torch.arange(alone.numel(), dtype=torch.float64).view_as(alone)
    found, expected = (torch.autograd.grad((x * weights).sum(), inputs) for x in (together, alone))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_attention_of_one_client_is_torch_s_to_the_bit() -> None:
    inputs = heads(2, 2)
    assert torch.equal(attend(*inputs, is_causal=True), F.scaled_dot_product_attention(*inputs, is_causal=True))


@pytest.mark.skipif(IS_OLD, reason="torch 2.4 has no `enable_gqa`")
def test_few_heads_of_keys_serve_many_of_queries() -> None:
    query, _, _ = heads(3, 2, 4)
    _, key, value = heads(3, 2, 2)
    together = vmap(lambda *x: attend(*x, enable_gqa=True), randomness="error")(query, key, value)
    wide = [x.repeat_interleave(2, 2) for x in (key, value)]
    torch.testing.assert_close(together, F.scaled_dot_product_attention(query, *wide), rtol=0, atol=1e-12)


def test_attention_is_dropped_by_the_key() -> None:
    """All weights are 1/5 and all values 1: what is left is a sum of five 1 / (5 (1 - p)), or nothing."""
    nothing, ones = torch.zeros(1, 1, 5, 4), torch.ones(1, 1, 5, 4)
    with ClientRandom(KEY) as random:
        dropped = F.scaled_dot_product_attention(nothing, nothing, ones, dropout_p=0.5)
    assert random.draws == 1
    kept = (dropped[0, 0, :, 0] / 0.4).round()
    torch.testing.assert_close(dropped[0, 0], 0.4 * kept[:, None].expand(5, 4))
    assert len(set(kept.tolist())) > 1
    assert torch.equal(dropped, attend(nothing, nothing, ones, dropout_p=0.5))
    with ClientRandom(KEY + 1):
        assert not torch.equal(dropped, F.scaled_dot_product_attention(nothing, nothing, ones, dropout_p=0.5))


@pytest.mark.parametrize("needs_weights", [False, True])
def test_dropout_within_multi_head_attention_is_seen(needs_weights: bool) -> None:
    """Alone and together: the same masks, and nothing from torch's generator."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True).double()
    inputs, keys = torch.randn(3, 2, 5, 4, dtype=torch.float64), torch.arange(3)

    def attended(x: Tensor, key: Tensor) -> Tensor:
        with ClientRandom(key):
            return layer(x, x, x, need_weights=needs_weights)[0]

    before = torch.get_rng_state()
    alone = torch.stack([attended(x, key) for x, key in zip(inputs, keys, strict=True)])
    together = vmap(attended, randomness="error")(inputs, keys)
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    assert not torch.allclose(alone, layer.eval()(*[inputs.flatten(0, 1)] * 3)[0].view_as(alone))


RECURRENT: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm, all": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 2, "batch_first": True}),
    "lstm, no bias": (nn.LSTM, {"num_layers": 3, "bias": False, "proj_size": 2}),
    "gru": (nn.GRU, {"num_layers": 2}),
    "gru, both ways": (nn.GRU, {"bidirectional": True, "bias": False, "batch_first": True}),
    "tanh": (nn.RNN, {"num_layers": 2, "bidirectional": True}),
    "relu": (nn.RNN, {"nonlinearity": "relu", "batch_first": True}),
}


def recurrent(kind: str, **options: Any) -> tuple[nn.RNNBase, dict[str, Tensor], Tensor]:
    torch.manual_seed(0)
    cls, settings = RECURRENT[kind]
    layer = cls(3, 4, **settings, **options).double()
    weights = {n: torch.randn(2, *p.shape, dtype=torch.float64) for n, p in layer.named_parameters()}
    return layer, weights, torch.randn(2, 5, 6, 3, dtype=torch.float64)


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_of_clients_together_are_torch_s(kind: str) -> None:
    layer, weights, inputs = recurrent(kind)

    def call(own: dict[str, Tensor], x: Tensor) -> Any:
        with ClientRandom(KEY):
            return functional_call(layer, own, (x,))

    together = vmap(call, randomness="error")(weights, inputs)
    for client in range(2):
        alone = functional_call(layer, {n: w[client] for n, w in weights.items()}, (inputs[client],))
        mine = torch.utils._pytree.tree_map(lambda x, client=client: x[client], together)
        torch.testing.assert_close(mine, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["lstm, all", "gru"])
def test_recurrent_layers_drop_by_the_key_between_layers(kind: str) -> None:
    layer, weights, inputs = recurrent(kind, dropout=0.5)

    def call(own: dict[str, Tensor], x: Tensor, key: Tensor) -> Tensor:
        with ClientRandom(key) as random:
            output = functional_call(layer, own, (x,))[0]
        assert random.draws == 1
        return output

    before, keys = torch.get_rng_state(), torch.arange(2)
    together = vmap(call, randomness="error")(weights, inputs, keys)
    alone = [call({n: w[i] for n, w in weights.items()}, inputs[i], keys[i]) for i in range(2)]
    torch.testing.assert_close(together, torch.stack(alone), rtol=0, atol=1e-12)
    assert torch.equal(torch.get_rng_state(), before)
    other = call({n: w[0] for n, w in weights.items()}, inputs[0], keys[1])
    assert not torch.allclose(other, alone[0])


def test_packed_sequences_stay_torch_s() -> None:
    layer, _, inputs = recurrent("lstm")
    packed = nn.utils.rnn.pack_padded_sequence(inputs[0], torch.tensor([5, 4, 3, 3, 2, 1]))
    with ClientRandom(KEY):
        found = layer(packed)
    assert torch.equal(found[0].data, layer(packed)[0].data)


def test_under_vmap() -> None:
    seen = []
    vmap(lambda x: seen.append(is_batched()) or x)(torch.zeros(2))
    assert seen == [True]
    assert not is_batched()
