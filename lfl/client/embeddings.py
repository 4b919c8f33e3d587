"""Embeddings with a row that stands for padding."""

import torch
from torch import Tensor, nn


def padding_rows(module: nn.Module) -> dict[str, Tensor]:
    """Masks [V, 1] (bool) of the rows that stand for padding, by the names of the embeddings' parameters."""
    embeddings = {f"{name}.weight": m for name, m in module.named_modules() if isinstance(m, nn.Embedding)}
    return {
        name.removeprefix("."): (torch.arange(m.num_embeddings) == m.padding_idx)[:, None]
        for name, m in embeddings.items()
        if m.padding_idx is not None
    }
