"""The studies: tables of made-up results, and every study on few rounds."""

import csv
from pathlib import Path
from types import ModuleType

import pytest

from tools.papers import compressors, fedmrur, flss, flss_convergence, flss_figures, ssf_networks, stacks, tables
from tools.papers.experiments import Outcome
from tools.papers.kept import tabulate


def outcome(accuracies: dict[int, float], bytes_a_round: float) -> Outcome:
    traffic = {number: number * bytes_a_round for number in accuracies}
    series = {"val_acc": accuracies, "comm/total_up_bytes": traffic, "comm/total_down_bytes": traffic}
    return Outcome(max(accuracies), 0.0, "", series)


def test_accuracy_at_equal_traffic() -> None:
    """A method with twice the traffic is read at half the rounds."""
    rising = {4: 0.1, 8: 0.2, 12: 0.3, 16: 0.4}
    results = {"FedAvg": [outcome(rising, 1e6)], "SCAFFOLD": [outcome(rising, 2e6)]}
    # Means of three evaluations: of the last ones, and of those within the 32 MB of FedAvg.
    assert tabulate("", tables.measure_flss(results)).rows == [
        ["FedAvg", "30.0", "30.0", "16.0", "16.0"],
        ["SCAFFOLD", "30.0", "15.0", "32.0", "32.0"],
    ]


def test_compressors_are_read_three_times() -> None:
    """FLSS sends 8 MB each way, at rounds 4 and 8 of FedAvg: up alone 8 MB are 8 rounds, both ways 8 as well."""
    rising = {4: 0.1, 8: 0.2, 12: 0.3, 16: 0.4}
    flss, fedavg = outcome(rising, 0.5e6), outcome({n: v + 0.1 for n, v in rising.items()}, 1e6)
    results = {name: [flss] for name in ("FLSS", "Sign + EF", "Sign + EF + FLSS")} | {"FedAvg": [fedavg]}
    end, at_upload, both = compressors.readings(results, "FedAvg")
    assert (end, at_upload, both) == (pytest.approx([40]), pytest.approx([25]), pytest.approx([25]))
    quantities = compressors.measure(results)
    assert quantities["accuracy % at FLSS's upload"].values["FedAvg"] == pytest.approx([25])
    leads = quantities["lead at the end"].values
    assert leads == {"FLSS over FedAvg": pytest.approx([-10]), "Sign + EF + FLSS over Sign + EF": [0.0]}
    assert quantities["MB up"].values["FLSS"] == [8.0]


def test_rounds_to_targets() -> None:
    results = {"FedAvg": [outcome({5: 0.86, 10: 0.91}, 1.0), outcome({5: 0.8, 10: 0.86}, 1.0)]}
    assert tabulate("", tables.measure_fedmrur(results)).rows[0][2:] == ["8 ± 4", "10 (1 never)", "(2 never)"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # whatever Lightning deprecates; the runs are the subject
@pytest.mark.parametrize(
    ("command", "study"),
    [
        (command, study)
        for command in (compressors, fedmrur, flss, flss_convergence, flss_figures, ssf_networks, stacks, tables)
        for study in command.STUDIES
    ],
)
def test_quick_study(command: ModuleType, study: str, tmp_path: Path) -> None:
    command.main([study, "--quick", "--rounds", "5", "--output", str(tmp_path)])
    (path,) = (found for found in tmp_path.glob("*.csv") if not found.stem.endswith("-numbers"))
    with path.open(newline="") as file:
        lines = [line["method"] for line in csv.DictReader(file)]
    methods = list(command.STUDIES[study].methods)
    assert lines[: len(methods)] == methods
    assert all(" over " in line for line in lines[len(methods) :])  # pairs of them
    assert "these numbers decide nothing" in path.with_suffix(".md").read_text()
    figures = path.with_name(f"{path.stem}-report") / "figures"
    assert (figures / f"{command.STUDIES[study].metrics[0]}_round.png").read_bytes().startswith(b"\x89PNG")
