"""The comparison at equal simulated times, of made-up runs and of a few rounds."""

import csv
import math
from pathlib import Path

import pytest

from tools.papers import stragglers
from tools.papers.experiments import Outcome
from tools.papers.stragglers import Curve, Race


def outcome(seconds_a_round: float, accuracies: dict[int, float]) -> Outcome:
    times = {number: number * seconds_a_round for number in accuracies}
    return Outcome(max(accuracies), 0.0, "", {"personal/val_acc": accuracies, "sim/time": times})


RISING = {10: 0.2, 20: 0.4, 40: 0.8, 80: 0.9}


def made_up() -> dict[str, list[Outcome]]:
    """FedAvg takes 4 seconds a round without communication; FedRep-SRPFL learns as much in rounds of 2."""
    plain = {name: [outcome(4.0, RISING)] for name in stragglers.PAIRS.values()}
    fast = {name: [outcome(2.0, RISING)] for name in stragglers.PAIRS}
    late = {f"FedAsync, C = {c:g}": [outcome(1.0, {40: 0.5, 400: 0.7})] for c in (0, 1, 10)}
    return {**plain, **fast, **late}


def test_a_curve_is_known_from_its_first_evaluation_to_its_end() -> None:
    curve = Curve.of(outcome(4.0, RISING), seconds=1.0)
    assert curve.times == [50, 100, 200, 400]
    assert math.isnan(curve.at(49.9))
    assert (curve.at(50), curve.at(199), curve.at(400)) == (20, 40, 90)
    assert math.isnan(curve.at(400.1))
    assert (curve.reaches(80), curve.reaches(91)) == (200, None)


def test_methods_are_read_on_the_clock_of_fedavg() -> None:
    """Rounds 10, 20, 40, 80 of FedAvg end at 40, 80, 160, 320 s; those of SRPFL at half of that."""
    free = Race.of(made_up(), 0.0)
    assert free.means("FedAvg") == [57.5]
    assert free.means("FedRep-SRPFL") == [70.0]  # (40 + 80 + 90) / 3: it has ended before the last
    assert free.means("FedAsync") == [50.0]  # its second evaluation comes after 400 s
    # With ten seconds of communication rounds of 14 and of 12 seconds are nearly as long.
    costly = Race.of(made_up(), 10.0)
    assert costly.means("FedRep-SRPFL") == [pytest.approx(140 / 3)]
    assert costly.curves["FedAsync"][0].times == [40, 400]


def test_leads_are_paired_and_targets_may_not_be_reached() -> None:
    quantities = stragglers.measure(made_up())
    assert quantities["lead, C = 0"].values["FedRep-SRPFL"] == [12.5]
    assert quantities["s to 90 %, C = 1"].values["FedAvg"] == [400]
    assert quantities["s to 90 %, C = 10"].values["FedAsync"] == [math.inf]
    assert list(quantities)[:2] == ["mean accuracy %, C = 0", "lead, C = 0"]


def test_those_that_wait_for_nobody_have_more_rounds() -> None:
    runs = stragglers.STUDIES["fixed"].runs([0], 100, "cpu")
    rounds = {
        name: (run.rounds, dict(run.overrides)["trainer.check_val_every_n_rounds"]) for name, (run,) in runs.items()
    }
    assert rounds["FedAvg"] == (100, 5)
    assert rounds["FedAsync, C = 0"] == (7000, 350)
    assert rounds["FedBuff, C = 10"] == (200, 10)


def test_all_have_the_optimizer_that_is_said() -> None:
    """Files of ``configs/`` have rates and momenta of their own."""
    runs = stragglers.STUDIES["fixed"].runs([0], 100, "cpu")
    found = {
        name: tuple(dict(run.overrides)[f"optimizer.init_args.{part}"] for part in ("lr", "momentum"))
        for name, (run,) in runs.items()
    }
    assert found["HF-MAML"] == (0.05, 0.0)
    assert found["FedAvg"] == found["FedAsync, C = 1"] == found["FedRep, 10 + 1"] == (0.1, 0.5)
    assert found["LG-FedAvg"] == found["LG-SRPFL"] == found["FedRep"] == found["FedBuff, C = 0"] == (0.05, 0.5)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # whatever Lightning deprecates; the runs are the subject
def test_quick_study(tmp_path: Path) -> None:
    stragglers.main(["fixed", "--quick", "--rounds", "5", "--output", str(tmp_path)])
    with (tmp_path / "stragglers-fixed.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 13
    first = {}
    for communication in (0, 10):
        folder = tmp_path / f"stragglers-fixed-{communication}-report"
        with (folder / "curves.csv").open(newline="") as file:
            first[communication] = next(row for row in csv.DictReader(file) if row["group"] == "FedRep")
        assert (folder / "figures" / "personal_val_acc_sim.png").exists()
    assert float(first[10]["sim"]) == pytest.approx(float(first[0]["sim"]) + 10 * int(first[0]["round"]))


def test_a_run_is_told_as_it_would_be_with_communication(tmp_path: Path) -> None:
    run = tmp_path / "run" / "run_000"
    run.mkdir(parents=True)
    (run / "metrics.csv").write_text("round,sim/time,val_acc\n1,2.5,\n2,0.1,0.5\n")
    (run / "config.yaml").write_text("trainer:\n  system:\n    init_args:\n      communication: 0.0\n")
    assert stragglers.delayed(tmp_path / "run", 0.0) == tmp_path / "run"
    copy = stragglers.delayed(tmp_path / "run", 10.0) / "run_000"
    assert (copy / "metrics.csv").read_text() == "round,sim/time,val_acc\n1,12.5,\n2,20.1,0.5\n"
    assert "communication: 10.0" in (copy / "config.yaml").read_text()
    assert "2,0.1," in (run / "metrics.csv").read_text()
