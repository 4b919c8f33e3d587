"""Costs are those of real rounds."""

import torch

from tools.papers import flss_costs


def test_the_tool_counts_what_rounds_send() -> None:
    """D = 8 * 8 * 2 + 2 = 130 on images of one channel; R = 3, L = 4, then 10 rounds."""
    setting = flss_costs.Setting(rank=3, warmup_rounds=4, rounds=10, examples=12)
    backbone = torch.nn.Sequential(torch.nn.Flatten(1), torch.nn.Linear(64, 2))
    sizes = {"channels": 1, "side": 8, "num_classes": 2}
    dim = 130
    for cell, expected in (
        (flss_costs.Cell("s = 5", sample_every=5), 2 * dim + 8 * 3),
        (flss_costs.Cell("fixed", sample_every=None), 10 * 3),
        (flss_costs.Cell("signs", sample_every=5, signs=True), 2 * (dim + 32) / 32 + 8 * 3),
    ):
        assert flss_costs.uploaded(cell, backbone, setting, **sizes) == expected
