"""The page: whole in one file, and what is in it."""

import base64
import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from run_folders import config_of, make_comparison, make_run

from lfl.report.content import Report
from lfl.report.groups import compare
from lfl.report.html import data_of, plotly_script, render

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SCRIPT = base64.b64encode(gzip.compress(b"var Plotly = {react: () => undefined};")).decode()


def page_of(path: Path, script: str | None = SCRIPT, title: str = "", different: int = 1) -> str:
    report = Report.of(compare([path]), [], ["val_acc=0.7"], "mb", title)
    return render(report, {path / "fedavg" / "run_000": [[3, 0], [1, 2], [0, 5]]}, different, script, {})


def test_data_of_the_page_are_the_curves(tmp_path: Path) -> None:
    data = data_of(page_of(make_comparison(tmp_path)))
    assert [group["label"] for group in data["groups"]] == ["FedAvg", "Proximal"]
    assert data["axis"] == "mb"
    assert data["curves"]["val_acc"]["Proximal"] == {
        "seeds": 2,
        "mean": [0.2, 0.7, 0.85],
        "low": [0.2, 0.7, 0.8],
        "high": [0.2, 0.7, 0.9],
        "axes": {
            "round": [1, 3, 4],
            "mb": [6, 18, 24],
            "mb_up": [2, 6, 8],
            "mb_down": [4, 12, 16],
            "sim": [2, 6, 8],
            "seconds": [0.5, 1.5, 2.0],
        },
    }
    assert data["targets"] == ["val_acc ≥ 0.7"]
    assert data["costs"]["mb"] == {"FedAvg": [[]], "Proximal": [[18, 18]]}
    assert data["partitions"] == [{"run": "FedAvg, fedavg/run_000", "counts": [[3, 1, 0], [0, 2, 5]]}]


def test_partitions_that_are_not_drawn_are_told(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    assert "These are 1 of 3 different partitions." in page_of(tmp_path, different=3)
    assert "different partitions" not in page_of(tmp_path)


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    page = page_of(make_comparison(tmp_path))
    assert re.findall(r"""(?:src|href)=["'](?!data:)""", page) == []
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'" in page


def test_names_are_escaped(tmp_path: Path) -> None:
    page = page_of(make_comparison(tmp_path), title="</script><b>")
    assert "</script><b>" not in page
    assert "&lt;/script&gt;&lt;b&gt;" in page


def test_without_plotly_there_are_pictures_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text("<svg/>")
    report = Report.of(compare([make_comparison(tmp_path / "runs")]), [], [], "round", "")
    page = render(report, {}, 0, None, {"val_acc against round": tmp_path / "a.svg"})
    assert "pip install &#39;lfl[report]&#39;" in page
    assert f"data:image/svg+xml;base64,{base64.b64encode(b'<svg/>').decode()}" in page
    assert "DecompressionStream" not in page


def test_long_curves_are_thinned_and_the_page_says_so(tmp_path: Path) -> None:
    make_run(tmp_path / "fedavg" / "run_000", [0.5 * n / 1000 for n in range(1000)], config_of(max_rounds=1000))
    page = page_of(tmp_path)
    assert len(data_of(page)["curves"]["val_acc"]["FedAvg"]["mean"]) == 334
    assert "Curves of more than 400 evaluations show every k-th of them and the last (k is at most 3)." in page


def test_plotly_is_packed_to_two_fifths() -> None:
    pytest.importorskip("plotly")
    script = plotly_script()
    assert script is not None
    assert len(script) < 2.5e6
    assert gzip.decompress(base64.b64decode(script))[:200].decode().count("plotly.js") == 1


@pytest.mark.slow
def test_a_browser_draws_it_without_errors_and_without_a_network(tmp_path: Path) -> None:
    """The page forbids what it does not hold (its Content-Security-Policy), so a request would be an error as well."""
    pytest.importorskip("plotly")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    page = tmp_path / "report.html"
    page.write_text(page_of(make_comparison(tmp_path / "runs"), plotly_script()))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--enable-logging=stderr"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND"]
    command = [browser, *options, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert 'data-drawn="true"' in done.stdout
    assert done.stdout.count('class="scatterlayer') >= 1
    assert done.stdout.count('class="heatmaplayer') >= 1
    assert 'class="boxlayer' in done.stdout
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
