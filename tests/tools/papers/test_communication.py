"""Costs are those of real rounds, and the page is what the CSV has."""

from pathlib import Path

import pytest
import torch

from lfl.callbacks import FederatedCallback, FetchSGD, Scaffold, Sign
from tools.papers import communication
from tools.papers.communication import PAGE, Setting, Traffic, compared, of_network, page, read, row_of
from tools.papers.cost_cells import CELLS, Cell, NetworkCell, ProblemCell, codec, flss

DOCS = Path(__file__).parents[3] / "docs/results"
DIM = 8 * 8 * 2 + 2


def counted(setting: Setting, **options: object) -> Traffic:
    """Traffic of a network with D = 130 on images of one channel."""
    cell = NetworkCell("", "", num_classes=2, **options)  # type: ignore[arg-type]
    backbone = torch.nn.Sequential(torch.nn.Flatten(1), torch.nn.Linear(64, 2))
    return of_network(cell, backbone, setting, channels=1, side=8)


@pytest.mark.parametrize(
    ("options", "up", "down"),
    [
        (flss(5, 3), 2 * DIM + 8 * 3, 2 * DIM + 8 * 3),
        (flss(None, 3), 10 * 3, DIM + 9 * 3),
        (flss(5, 3, signs=True), 2 * (DIM + 32) / 32 + 8 * 3, 2 * DIM + 8 * 3),
        (flss(5, 3, all_rounds=True), 202 * DIM + 8 * 3, 202 * DIM + 8 * 3),
    ],
)
def test_what_rounds_send_is_counted(options: dict[str, object], up: float, down: float) -> None:
    """L = 4, then 10 rounds, also where one period of them is run."""
    for measured in (10, 5) if options["sample_every"] else (10, 2):
        setting = Setting(4, measured, rounds=10, examples=12)
        assert counted(setting, **options) == Traffic(up, down)


def test_a_period_stands_for_all_rounds() -> None:
    """FedAvg's rounds are alike; SCAFFOLD sends twice as much in half the rounds."""
    setting = Setting(rounds=10, examples=12)
    stacks: list[tuple[FederatedCallback, float, float]] = [
        (Sign(), 10 * (DIM + 32) / 32, 10 * DIM),
        (FetchSGD(5, 6, 13), 10 * 30, 10 * 13 * (32 + 8) / 32),  # values, and indices of 8 bits
    ]
    assert counted(setting) == Traffic(10 * DIM, 10 * DIM)
    assert counted(setting, **codec(lambda dim: Scaffold(), rounds_share=0.5)) == Traffic(10 * DIM, 10 * DIM)
    for callback, up, down in stacks:
        assert counted(setting, **codec(lambda dim, chosen=callback: chosen)) == Traffic(up, down)


def test_a_problem_is_counted_by_client_and_round() -> None:
    """k_i = 100 i of ten clients, each a value of 64 bits and an index of 10, which is 550 (1 + 10 / 64)."""
    cell = next(cell for cell in CELLS if isinstance(cell, ProblemCell) and cell.name.startswith("Top-k"))
    assert communication.traffic(cell) == Traffic(550 * 74 / 64, 1000)


@pytest.mark.parametrize(
    ("paper", "count", "gap", "reason"),
    [
        ("35.14 M", 35_149_520, "+0.03 %", "cut, not rounded"),
        ("37.00 M", 36_996_320, "-0.01 %", "rounded"),
        ("1e-5 G", 10_000, "+0.00 %", "equal"),
        ("1,000", 1_000, "+0.00 %", "equal"),
        ("36.98 M", 36_991_520, "+0.03 %", "why"),
        ("0.20 G", 351_415_212, "+75.71 %", "why"),
        ("", 5, "", "why"),
    ],
)
def test_a_gap_has_its_reason(paper: str, count: float, gap: str, reason: str) -> None:
    assert compared(Cell("", paper, "why"), count) == (gap, reason)


def test_every_cell_of_the_papers_tables_has_its_network() -> None:
    """With the paper's D."""
    dims = {("cnn", 10): 878_538, ("cnn", 100): 924_708, ("resnet18", 10): 11_181_642}
    dims |= {("resnet18", 100): 11_227_812, ("resnet50", 100): 23_712_932}
    networks = {(cell.network, cell.num_classes) for cell in CELLS if isinstance(cell, NetworkCell)}
    assert networks == set(dims)
    for (network, classes), dim in dims.items():
        with torch.device("meta"):
            backbone = communication.NETWORKS[network](classes)
        assert sum(parameter.numel() for parameter in backbone.parameters()) == dim
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_the_page_is_what_the_csv_has_and_every_gap_is_explained() -> None:
    rows = read(DOCS / "data/communication.csv")
    assert list(rows) == [cell.name for cell in CELLS]
    for cell in CELLS:
        row = rows[cell.name]
        assert row == row_of(cell, Traffic(float(row[2]), float(row[3])))
        assert row[-1], cell.name
    assert (DOCS / "communication.md").read_text() == page(rows)


def test_cells_are_made_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communication, "traffic", lambda cell: Traffic(1e6, 2e6))
    communication.main(["--networks", "cnn", "--only", "STC", "--docs", str(tmp_path)])
    communication.main(["--networks", "problems", "--only", "SSF,", "--docs", str(tmp_path)])
    rows = read(tmp_path / "data/communication.csv")
    assert [row[:4] for row in rows.values()][:1] == [["STC; CNN, CIFAR-10", "5.49 M", "1000000", "2000000"]]
    assert len(rows) == 3
    assert (tmp_path / "communication.md").read_text().startswith(PAGE[:40])
