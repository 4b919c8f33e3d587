"""Pictures are files; what loggers get is tested with those who draw."""

from pathlib import Path

from matplotlib.figure import Figure

from lfl.reporting.figures import FOLDER, save_figure


def test_a_picture_is_a_png_named_by_its_round(tmp_path: Path) -> None:
    figure = Figure()
    figure.add_subplot().plot([1, 2])
    path = save_figure(figure, tmp_path / FOLDER, [], "clients", 12)
    assert path == tmp_path / "pictures" / "clients_000012.png"
    assert path.read_bytes().startswith(b"\x89PNG")
