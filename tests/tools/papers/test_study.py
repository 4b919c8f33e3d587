"""A study's own table and the report of its runs say the same."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tools.papers import flss
from tools.papers.experiments import Laboratory, Outcome, Run
from tools.papers.kept import Quantity, read, tabulate
from tools.papers.study import Method, Study, accuracy_and_bytes, final, per_run, report_runs, show

EVALUATIONS = range(4, 161, 4)
STUDY = Study(
    "made up",
    {"FedAvg": Method("fedavg.yaml"), "SCAFFOLD": Method("scaffold.yaml"), "longer": Method("fedavg.yaml", rounds=200)},
    (),
    rounds=160,
    evaluate_every=4,
    metrics=("val_acc", "comm/total_up_bytes", "comm/total_down_bytes"),
    measure=accuracy_and_bytes,
)


def leave(run: Run, laboratory: Laboratory) -> Outcome:
    """Leave what a run would: its accuracy rises by a hundredth each evaluation, from its seed's tenth on."""
    accuracies = {n: 0.1 * run.seed + n / 400 for n in EVALUATIONS}
    up = 1e6 if run.config == "fedavg.yaml" else 2e6
    traffic = {n: up * n for n in EVALUATIONS}
    folder = laboratory.folder(run) / "run_000"
    folder.mkdir(parents=True)
    callbacks = [] if run.config == "fedavg.yaml" else [{"class_path": "lfl.callbacks.Scaffold"}]
    config = {"seed_everything": run.seed, "trainer": {"max_rounds": 160, "callbacks": callbacks}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    rows = [f"{n},{accuracies[n]!r},{traffic[n]!r},{traffic[n]!r}" for n in EVALUATIONS]
    (folder / "metrics.csv").write_text("\n".join([f"round,{','.join(STUDY.metrics)}", *rows]) + "\n")
    (folder / "timing.csv").write_text("round,time/round_s\n" + "".join(f"{n},1.0\n" for n in EVALUATIONS))
    return Outcome(160, 0.0, "", dict(zip(STUDY.metrics, (accuracies, traffic, traffic), strict=True)))


def test_the_report_reproduces_the_table(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    for name in ("fedavg", "scaffold"):
        (tmp_path / "configs" / f"{name}.yaml").write_text("")
    laboratory = Laboratory(tmp_path / "configs", tmp_path / "out")
    runs = {name: group for name, group in STUDY.runs([0, 1], 160, "cpu").items() if name != "longer"}
    results = {name: [leave(run, laboratory) for run in group] for name, group in runs.items()}
    report_runs("study", laboratory, runs)
    assert sorted(path.name for path in (tmp_path / "out" / "study").iterdir()) == ["01 FedAvg", "02 SCAFFOLD"]
    summary = pd.read_csv(tmp_path / "out" / "study-report" / "summary.csv").set_index("group")
    # Accuracies of evaluations 37 to 40: 0.385 on average with seed 0, 0.485 with seed 1.
    own = per_run(results, lambda outcome: final(outcome, "val_acc"), 4)
    assert own.values["FedAvg"] == [pytest.approx(0.385), pytest.approx(0.485)]
    column = next(name for name in summary.columns if "tenth" in name and name.endswith("_mean"))
    assert summary[column].to_dict() == pytest.approx({"FedAvg": 0.435, "SCAFFOLD": 0.435})
    table = tabulate("", accuracy_and_bytes(results))
    assert table.rows == [
        ["FedAvg", "43.5 ± 7.1", "160.0 ± 0.0", "160.0 ± 0.0"],
        ["SCAFFOLD", "43.5 ± 7.1", "320.0 ± 0.0", "320.0 ± 0.0"],
    ]
    assert (tmp_path / "out" / "study-report" / "figures" / "val_acc_mb_up.svg").exists()


def test_a_method_may_have_rounds_of_its_own() -> None:
    assert STUDY.runs([0], 160, "cpu")["longer"][0].rounds == 200
    assert STUDY.runs([0], 5, "cpu")["longer"][0].rounds == 5  # a look


def test_a_method_may_log_what_others_do_not() -> None:
    study = replace(STUDY, methods={**STUDY.methods, "H": Method("fedavg.yaml", metrics=("ratio",))})
    runs = study.runs([0], 160, "cpu")
    assert runs["H"][0].metrics == (*STUDY.metrics, "ratio")
    assert runs["FedAvg"][0].metrics == STUDY.metrics


def test_a_look_ends_the_warm_up_of_flss_early() -> None:
    """So that it projects, too."""
    warmup = "trainer.callbacks.init_args.warmup_rounds"
    study = flss.STUDIES["noise"]
    lengths = [dict(study.runs([0], rounds, "cpu")["FLSS"][0].overrides)[warmup] for rounds in (160, 10)]
    assert lengths == [80, 4]
    stacks = [
        dict(flss.STUDIES["lenet"].runs([0], rounds, "cpu")["Sign + EF + FLSS"][0].overrides)["trainer.callbacks"]
        for rounds in (160, 10)
    ]
    assert [json.loads(str(stack))[0]["init_args"]["warmup_rounds"] for stack in stacks] == [100, 4]


def test_some_methods_come_with_those_they_are_measured_by() -> None:
    study = flss.STUDIES["parts"]
    assert list(study.only(["R = 5"]).methods) == ["FLSS", "R = 5"]
    assert study.only(None) is study
    with pytest.raises(SystemExit, match=r"no method 'R = 6' in .*: one of FedAvg, FLSS, R = 5"):
        study.only(["R = 6"])


def test_a_part_of_a_study_is_told_with_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.papers.study.KEPT", tmp_path)
    monkeypatch.setattr("tools.papers.claims.KEPT", tmp_path)
    whole = ["parts", "--keep", "--output", str(tmp_path / "out")]
    show("title", "study", {"x": Quantity({"A": [1.0, 2.0]})}, flss.options_of(whole))
    show("title", "study", {"x": Quantity({"A": [6.0]})}, flss.options_of([*whole, "--first-seed", "2"]))
    told = (tmp_path / "out/study.md").read_text()
    assert told.startswith("**title, seeds 0, 1, 2**\n")
    assert "| A | 3.0 ± 2.6 |" in told
    assert [(row.seed, row.value) for row in read(tmp_path / "study.csv")] == [(0, 1.0), (1, 2.0), (2, 6.0)]
