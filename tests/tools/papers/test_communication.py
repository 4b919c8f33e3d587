"""Costs are those of real rounds."""

import torch

from lfl.callbacks import FetchSGD
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
        (flss_costs.Cell("R = 2", sample_every=5, rank=2), 2 * dim + 8 * 2),
        (flss_costs.Cell("all rounds", sample_every=5, counts_warmup=True), 202 * dim + 8 * 3),
    ):
        assert flss_costs.uploaded(cell, backbone, setting, **sizes) == expected


def test_a_period_stands_for_all_rounds() -> None:
    """FedAvg's rounds are alike; SCAFFOLD sends twice as much in half the rounds; of a ResNet s rounds are run."""
    setting = flss_costs.Setting(rank=3, warmup_rounds=4, rounds=10, examples=12)
    sizes = {"channels": 1, "side": 8, "num_classes": 2}
    dim = 130
    for cell, rounds, expected in (
        (flss_costs.Cell("FedAvg", projects=False), 2, 10 * dim),
        (flss_costs.Cell("SCAFFOLD", projects=False, controls=True), 2, 10 * dim),
        (flss_costs.Cell("signs", projects=False, signs=True), 2, 10 * (dim + 32) / 32),
        (
            flss_costs.Cell("FetchSGD", projects=False, codec=lambda dim: FetchSGD(5, dim // 20)),
            2,
            10 * 5 * (dim // 20),
        ),
        (flss_costs.Cell("ResNet", network="resnet18", sample_every=5), 5, 2 * (dim + 4 * 3)),
    ):
        small = setting.of(cell)
        backbone = torch.nn.Sequential(torch.nn.Flatten(1), torch.nn.Linear(64, 2))
        assert small.measured == rounds
        assert flss_costs.uploaded(cell, backbone, small, **sizes) == expected


def test_every_cell_of_the_papers_tables_has_its_network() -> None:
    """With the paper's D: as printed, where the unit is not rounded to less than half a percent."""
    dims = {("cnn", 10): 878_538, ("cnn", 100): 924_708, ("resnet18", 10): 11_181_642}
    dims |= {("resnet18", 100): 11_227_812, ("resnet50", 100): 23_712_932}
    assert {(cell.network, cell.num_classes) for cell in flss_costs.CELLS} == set(dims)
    for (network, classes), dim in dims.items():
        with torch.device("meta"):
            backbone = flss_costs.NETWORKS[network](classes)
        assert sum(parameter.numel() for parameter in backbone.parameters()) == dim
