"""Figures for print."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from lfl.report.costs import Costs
from lfl.report.curves import Curve
from lfl.report.figures import clients_figure, costs_figure, curves_figure, draw_band, save
from lfl.report.metrics import Target
from lfl.report.styles import style_of


def curve(seeds: int = 2) -> Curve:
    x = np.array([1.0, 2.0, 4.0])
    return Curve(x, x / 8, x / 16, x / 4, {"round": x, "mb": 3 * x}, seeds)


def test_a_band_has_a_line_and_its_range() -> None:
    axes = Figure().add_subplot()
    draw_band(axes, [1, 2], [3, 4], [3, 3], [3, 5], label="a")
    draw_band(axes, [1, 2], [3, 4], [3, 4], [3, 4], label="alone")
    assert [line.get_label() for line in axes.lines] == ["a", "alone"]
    assert len(axes.collections) == 1


def test_curves_are_drawn_in_their_styles_against_an_axis() -> None:
    curves = {"FedAvg": (curve(), style_of(0)), "FedProx": (curve(), style_of(8))}
    figure = curves_figure(curves, "val_acc", "mb")
    assert figure is not None
    (axes,) = figure.axes
    assert [line.get_color() for line in axes.lines] == [style_of(0).colour, style_of(8).colour]
    assert axes.lines[0].get_xdata().tolist() == [3.0, 6.0, 12.0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("MB up and down", "val_acc")
    assert curves_figure(curves, "val_acc", "sim") is None


def test_axes_may_be_logarithmic() -> None:
    figure = curves_figure({"FedAvg": (curve(), style_of(0))}, "val_loss", "round", log="y")
    assert figure is not None
    assert (figure.axes[0].get_xscale(), figure.axes[0].get_yscale()) == ("linear", "log")


def test_costs_of_targets_are_boxes_or_points_and_means_joined() -> None:
    """A mean over those that got there would flatter, so that the line leaves out what not all runs reached."""
    targets = [Target("val_acc", 0.5, 1), Target("val_acc", 0.9, 1)]
    costs = {
        "FedAvg": (Costs([[2.0, 4.0], [6.0, np.inf]]), style_of(0)),
        "FLSS": (Costs([[1.0, 2.0, 3.0, 4.0, 5.0], [50.0] * 5]), style_of(1)),
    }
    (axes,) = costs_figure(costs, targets, "mb_up").axes
    means = {line.get_label(): line.get_ydata() for line in axes.lines if not str(line.get_label()).startswith("_")}
    np.testing.assert_array_equal(means["FedAvg"], [3.0, np.nan])
    np.testing.assert_array_equal(means["FLSS"], [3.0, 50.0])
    points = [line.get_ydata() for line in axes.lines if line.get_marker() == "o" and line.get_color() == "#0072b2"]
    assert [list(values) for values in points] == [[2.0, 4.0], [6.0]]
    first, second = next(line.get_xdata() for line in axes.lines if line.get_marker() == "o")
    assert -0.4 < first < second < 0  # beside each other, left of the other group's box
    assert (axes.get_ylabel(), axes.get_yscale()) == ("MB up until then", "log")
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert (axes.get_xlabel(), ticks) == ("val_acc", ["≥ 0.5", "≥ 0.9\n(1 of 7 runs never)"])
    (axes,) = costs_figure(costs, [targets[0], Target("val_loss", 0.9, -1)], "mb_up").axes
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert (axes.get_xlabel(), ticks) == ("", ["val_acc ≥ 0.5", "val_loss ≤ 0.9\n(1 of 7 runs never)"])


def test_clients_are_drawn_as_shares() -> None:
    (axes,) = clients_figure({"FedAvg": (np.array([0.5, 0.25]), style_of(0))}, "val_acc").axes
    assert axes.lines[0].get_ydata().tolist() == [0.0, 0.5, 1.0]


def test_long_and_foreign_labels_leave_room_for_curves_and_warn_of_nothing(tmp_path: Path) -> None:
    """Warnings are errors in tests."""
    labels = [f"联邦 {'a very long name, ' * 20}{number}" for number in range(12)]
    figure = curves_figure({label: (curve(), style_of(n)) for n, label in enumerate(labels)}, "val_acc", "round", 60)
    assert figure is not None
    save(figure, tmp_path, "curve")
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    assert all(len(text.get_text()) <= 40 and "…" in text.get_text() for text in legend.get_texts())
    assert axes.get_position().width > 0.3
    assert axes.get_title(loc="right") == "12 of 60 groups"


def test_dollars_begin_no_formula(tmp_path: Path) -> None:
    figure = curves_figure({r"$\frac{ of $5": (curve(), style_of(0))}, "val_acc", "round")
    assert figure is not None
    save(figure, tmp_path, "curve")


def test_no_room_for_axes_is_no_warning(tmp_path: Path) -> None:
    figure = Figure(figsize=(1, 1), layout="constrained")
    figure.add_subplot().set_ylabel("wide\n" * 40)
    save(figure, tmp_path, "narrow")


def test_equal_figures_give_equal_files(tmp_path: Path) -> None:
    written = []
    for name in ("a", "b"):
        figure = curves_figure({"FedAvg": (curve(), style_of(0))}, "val_acc", "round")
        assert figure is not None
        written.append([path.read_bytes() for path in save(figure, tmp_path / name, "curve")])
    assert written[0] == written[1]
    assert written[0][0].startswith(b"\x89PNG")
    assert b"<svg" in written[0][1]
