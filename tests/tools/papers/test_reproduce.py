"""Reproductions from end to end, on few rounds."""

import csv
import math
from pathlib import Path

import pytest

from tools import CONFIGS
from tools.papers import experiments, reproduce, ssf, ssgd

INF = math.inf


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.filterwarnings("ignore")  # whatever Lightning deprecates; the runs are the subject
def test_quick_table_from_end_to_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["ssf-noiseless", "--quick", "--rounds", "3", "--output", str(tmp_path)]
    reproduce.main(arguments)
    first = capfd.readouterr()
    lines = rows(tmp_path / "ssf-noiseless.csv")
    assert [line["method"] for line in lines] == [str(m) for m in ssf.NOISELESS]
    assert all(0 < float(line["ours"]) < 2 for line in lines)
    assert len(rows(tmp_path / "ssf-noiseless-numbers.csv")) == 18
    assert "these numbers decide nothing" in (tmp_path / "ssf-noiseless.md").read_text()
    assert (tmp_path / "ssf-noiseless.png").read_bytes().startswith(b"\x89PNG")
    assert first.err.count("3 rounds") == 9
    assert sorted(path.suffix for path in (tmp_path / "results").iterdir()) == [""] * 9 + [".json"] * 9

    reproduce.main(arguments)
    again = capfd.readouterr()
    assert again.err == ""  # nothing was run again
    assert again.out == first.out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_quick_figure_from_end_to_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["ssgd-fig2", "--quick", "--rounds", "5", "--seeds", "1", "--output", str(tmp_path)]
    reproduce.main(arguments)
    lines = rows(tmp_path / "ssgd-fig2.csv")
    names = ["FedAvg", "FL-SSGD", "FL-SSVRG", "Top-k EF", "Top-k EF, indices free", "S-SNAG-EF"]
    names += ["S-SNAG-EF, sequences"]
    assert [line["method"] for line in lines] == names
    assert {line["to 0.1"] for line in lines} == {"not reached"}
    reached = {line["value"] for line in rows(tmp_path / "ssgd-fig2-numbers.csv") if line["quantity"] == "s to 0.1"}
    assert reached == {"inf"}
    assert (tmp_path / "ssgd-fig2-report" / "figures" / "val_relative_gradient_norm_sim.png").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_run_stops_when_it_is_there_and_when_it_diverges(tmp_path: Path) -> None:
    laboratory = experiments.Laboratory(CONFIGS / "problems", tmp_path, tell=lambda said: None)
    small = (("model.init_args.dim", 20), ("data.init_args.dim", 20), ("trainer.callbacks", "null"))
    config, norms = ssgd.FEDAVG.config, (ssgd.NORM, ssgd.LOSS, ssgd.TIME)
    stop = ("trainer.callbacks+", "tools.papers.stopping.GradientNormEarlyStopping")
    limits = (("trainer.callbacks.init_args.norm", 0.5), ("trainer.callbacks.init_args.loss", 0.4))
    runs = {
        rate: experiments.Run(config, 100, 0, norms, (*small, ("model.init_args.lr", rate), stop, *limits))
        for rate in (100.0, 1e6)
    }
    good, bad = (laboratory.outcomes(runs.values())[run] for run in runs.values())
    assert 0 < good.last_round < 100
    assert ssgd.crossing(good, 0.5) == good.last_round
    assert bad.last_round == 5  # the first evaluation
    assert bad.series[ssgd.LOSS][5] > 0.4
    assert ssgd.crossing(bad, INF) is None
