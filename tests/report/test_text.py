"""The report as Markdown."""

from pathlib import Path

from run_folders import config_of, make_comparison, make_run

from lfl.report.content import Report
from lfl.report.groups import compare
from lfl.report.text import render_text


def test_tables_figures_and_settings(tmp_path: Path) -> None:
    report = Report.of(compare([make_comparison(tmp_path)]), [], ["val_acc=0.7"], "round", "A title")
    text = render_text(report, [Path("figures/val_acc_round.png")])
    lines = text.splitlines()
    assert lines[0] == "# A title"
    assert "| FedAvg | 2 | 0.5000 ± 0.1414 | 0.5500 ± 0.0707 | 0.5000 ± 0.1414 | (2 of 2 never) |" in text
    assert "![val_acc_round](figures/val_acc_round.png)" in lines
    assert "| Proximal | up | update | 8 |" in lines
    assert "| Proximal | 0.3 | 0.2 |" in lines
    assert "- `lr`: 0.1" in lines


def test_the_best_means_are_bold_and_what_is_not_known_is_a_dash(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    for number in range(2):
        (tmp_path / "fedprox" / f"run_{number:03d}" / "timing.csv").unlink()
    text = render_text(Report.of(compare([tmp_path]), [], [], "round", ""), [])
    assert "| group | runs | final | best | last tenth | MB up | MB down | simulated s | real s |" in text
    fedavg, proximal = (line.split(" | ") for line in text.splitlines()[6:8])
    assert fedavg[2:5] == ["0.5000 ± 0.1414", "0.5500 ± 0.0707", "0.5000 ± 0.1414"]
    assert proximal[2:5] == ["**0.8500 ± 0.0707**"] * 3
    assert (fedavg[-1], proximal[-1]) == ("2.000 ± 0 |", "\N{EN DASH} |")
    assert "| Proximal | 0.3 | 0.2 |" not in text


def test_groups_that_are_not_drawn_are_told(tmp_path: Path) -> None:
    for number in range(13):
        make_run(tmp_path / f"run_{number}", config=config_of(lr=0.01 * (number + 1)))
    report = Report.of(compare([tmp_path]), [], [], "round", "")
    text = render_text(report, [Path("figures/val_acc_round.png")])
    assert "## Figures\n\nDrawn are the best 12 of 13 groups.\n\n![val_acc_round]" in text
