"""The tools run; the loop by hand gives the trainer's bits."""

import csv
import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from lfl.trainer import FederatedTrainer

TOOLS = Path(__file__).parent.parent / "tools"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a tool as it imports its neighbours."""
    monkeypatch.syspath_prepend(str(TOOLS))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("name", "rounds"), [("mlp", 6), ("cnn", 2)])
def test_trainer_equals_the_loop_by_hand_bit_for_bit(tool, name, rounds, weighted):
    turns = tool("overhead").measure(name, rounds, weighted)
    assert len(turns.loop_seconds) == rounds
    assert turns.largest_difference == 0.0


def test_the_loop_notices_another_seed(tool):
    overhead = tool("overhead")
    model, data = overhead.model_and_data("mlp")
    data.setup("fit")
    start = model.backbone.state_dict()
    vectors = []
    for seed in (0, 0, 1):
        model.backbone.load_state_dict({name: value.clone() for name, value in start.items()})
        vectors.append(tool("loop_baseline").FedAvgLoop(model.backbone, data, lr=0.1, seed=seed).run_round(1))
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


def test_a_table_is_written_as_csv_and_markdown(tool, tmp_path):
    table = tool("report").Table("A title", ["method", "value"])
    table.add("one, two", "3")
    table.write(tmp_path / "new")
    assert rows(tmp_path / "new" / "table.csv") == [{"method": "one, two", "value": "3"}]
    text = (tmp_path / "new" / "table.md").read_text()
    assert text == "**A title**\n\n| method | value |\n| --- | ---: |\n| one, two | 3 |\n"


def test_killed_runs_equal_an_unbroken_one(tool, tmp_path, capfd):
    arguments = ["--methods", "SCAFFOLD", "--engines", "sequential", "--states", "memmap", "--kills", "3"]
    with pytest.raises(SystemExit) as ended:
        tool("kill_test").main([*arguments, "--rounds", "6", "--output", str(tmp_path)])
    assert ended.value.code == 0
    (line,) = rows(tmp_path / "table.csv")
    assert (line["kills"], line["differs"]) == ("3", "nothing")


def test_what_differs_between_checkpoints_is_named(tool):
    differing = tool("kill_test").differing
    one = {"a": [torch.tensor([0.0, 1.0])], "nan": float("nan"), "seconds": 1.0, "only": 1}
    other = {"a": [torch.tensor([-0.0, 1.0])], "nan": float("nan"), "seconds": 2.0}
    assert differing(one, one) == []
    assert differing(one, other) == ["a/0", "only"]
    assert differing(other, one) == ["a/0", "only"]


def test_a_partition_is_drawn_from_a_run(tool, tmp_path, capsys):
    from lfl.data import FederatedDataModule

    data = FederatedDataModule(num_clients=5)
    data.setup("fit")
    data.partition.save(tmp_path / "partition.pt")
    settings = {"class_path": "lfl.data.FederatedDataModule", "init_args": {"num_clients": 5}}
    (tmp_path / "config.yaml").write_text(json.dumps({"data": settings}))
    tool("plot_partition").main([str(tmp_path)])
    assert capsys.readouterr().out.strip() == str(tmp_path / "partition.png")
    assert (tmp_path / "partition.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_partition_is_one_line(tool, tmp_path):
    with pytest.raises(SystemExit, match=r"^plot_partition: There is no partition at "):
        tool("plot_partition").main([str(tmp_path)])


def test_growth_is_told_with_its_numbers(tool):
    grows = tool("scale").grows
    assert grows("MB", [100.0, 104.0, 90.0], 0.05) == []
    assert grows("MB", [100.0, 104.0, 106.0], 0.05) == [
        "FAILED: MB: 100.00, 104.00, 106.00; 6.0 % more than the first, over 5 %"
    ]


def test_a_scale_job_runs_in_a_process_of_its_own(tool):
    scale = tool("scale")
    measured = scale.run_apart(scale.Job(clients=30, rounds=3, hidden=4))
    assert len(measured.resident) == len(measured.seconds) == 3
    assert measured.peak >= max(measured.resident) > 0
    assert measured.state_bytes % (4 * measured.num_parameters) == 0
    assert measured.files["clients"] > measured.state_bytes > 0
    column = scale.column_of(scale.Job(30, 3, 4), measured, warmup=1)
    assert column["MB on disk, clients' rows"] == f"{measured.files['clients'] / 1e6:.2f}"


def test_exponents_are_slopes_and_costs_are_fitted(tool):
    scaling = tool("scaling")
    jobs = {n: scaling.Job("sequential", clients=n) for n in (10, 100, 1000)}
    curve = scaling.Curve("clients", "sequential", jobs, [[1.0, 10.0, 100.0], [1.0, 10.0, 400.0]])
    assert curve.exponents == pytest.approx((1.0, 1.0, 1.301), abs=1e-3)
    assert curve.last == pytest.approx(1.0)
    assert not curve.is_superlinear
    assert scaling.Curve("clients", "sequential", jobs, [[1.0, 1.0, 20.0]]).is_superlinear
    grid = [scaling.Job(engine, m, steps=k) for engine in scaling.ENGINES for m in (1, 200) for k in (1, 4)]
    steps = [1, 4, 200, 800, 1, 4, 4, 16]  # of 200 clients: 200 cohorts of one, 4 of 64
    seconds = [1e-6 * (500 + 20 * job.per_round + 300 * count) for job, count in zip(grid, steps, strict=True)]
    cost = scaling.fit_costs(grid, seconds)
    assert (cost.round, cost.client, cost.step, cost.error) == pytest.approx((500, 20, 300, 0), abs=1e-6)


def test_a_look_at_scaling(tool, tmp_path):
    scaling = tool("scaling")
    scaling.main(["--quick", "--seconds", "0.01", "--output", str(tmp_path)])
    lines = rows(tmp_path / "growth.csv")
    assert [(line["quantity"], line["engine"]) for line in lines] == [
        (quantity, engine) for engine in scaling.ENGINES for quantity in ("clients per round", "parameters", "clients")
    ]
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_a_look_at_overhead(tool, tmp_path):
    scaling = tool("scaling")
    scaling.main(["overhead", "--quick", "--seconds", "0.01", "--output", str(tmp_path)])
    lines = {line[""]: line for line in rows(tmp_path / "overhead.csv")}
    for variant in scaling.VARIANTS:
        shares = {
            part: float(line[variant]) for part, line in lines.items() if part.endswith(", %") and "fit" not in part
        }
        assert sum(shares.values()) == pytest.approx(100, abs=1)
        assert min(shares[f"train: {part}, %"] for part in ("batches", "gradient", "cohorts")) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # whatever Lightning deprecates; the runs are the subject
def test_quick_comparison_has_a_line_for_each_method(tool, tmp_path, capsys):
    tool("compare").main(["--quick", "--output", str(tmp_path)])
    lines = rows(tmp_path / "table.csv")
    assert [line["method"] for line in lines] == [m.name for m in tool("compare").METHODS]
    sent = {line["method"]: float(line["MB up"].replace(",", "")) for line in lines}
    assert sent["SSF 0.05"] < sent["SSF 0.2"] < sent["SSF 0.5"] < sent["FedAvg"] < sent["SCAFFOLD"]
    assert all(float(line[f"s / round {engine}."]) > 0 for line in lines for engine in ("seq", "vec"))
    assert (tmp_path / "curves.png").exists()
    assert "SCAFFOLD" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_neither_clients_nor_rounds_cost_memory(tool, tmp_path):
    sizes = ["--clients", "200", "2000", "--rounds", "60", "--repeats", "1", "--growth_rounds", "100"]
    with pytest.raises(SystemExit) as ended:
        tool("scale").main([*sizes, "--time_tolerance", "1", "--output", str(tmp_path)])
    assert ended.value.code == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_big_runs_have_a_column_each(tool, tmp_path):
    tool("scale").main(["--million", "--most", "1000", "--rounds", "6", "--warmup", "1", "--output", str(tmp_path)])
    lines = {line[0]: line[1:] for line in csv.reader((tmp_path / "million.csv").read_text().splitlines())}
    assert lines[""] == ["FedAvg", "FedAvg", "FedAvg, Dirichlet(10)", "SCAFFOLD", "SCAFFOLD"]
    assert lines["clients"] == ["1,000", "1,000", "1,000", "1,000", "100"]
    assert [float(cell) > 0 for cell in lines["MB on disk, clients' rows"]] == [False] * 3 + [True] * 2


def test_the_bare_round_is_the_trainers(tool, tmp_path):
    tool("benchmark").main(["ssf-round", "--rounds", "6", "--block", "2", "--output", str(tmp_path)])
    names = [row[""] for row in rows(tmp_path / "ssf-round.csv")]
    assert names == ["bare tensor operations", "lfl", "ratio"]


def test_the_floor_of_the_benchmark_does_the_same(tool, tmp_path):
    """One batch a client, so that shuffling does not matter: the loop by hand, and the trainer in all its ways."""
    workload = replace(tool("workloads").WORKLOADS["many-small"], clients=200, per_round=20)
    data, rounds = workload.data(), 3
    data.batch_size = int(data.client_sizes.max())
    train = workload.tensors()[0]
    loop = tool("floor").FlatLoop(
        workload.model().backbone,
        train.inputs,
        train.targets,
        [data.partition.client(i) for i in range(200)],
        epochs=1,
        batch_size=data.batch_size,
        lr=0.05,
    )
    for participants in workload.participants(rounds).tolist():
        loop.run_round(participants)
    for engine, trace in (("sequential", False), ("sequential", True), ("vectorized", True)):
        trainer = FederatedTrainer(
            accelerator="cpu",
            engine=engine,
            trace_steps=trace,
            max_rounds=rounds,
            participation=workload.participation(),
            checkpoint=None,
            default_root_dir=tmp_path,
            enable_progress_bar=False,
        )
        trainer.fit(workload.model(), data)
        # float32: 60 steps of size 0.05 on numbers of size 0.1
        torch.testing.assert_close(trainer.server.vector, loop.server, rtol=0, atol=1e-5)


@pytest.mark.timeout(120)
def test_the_benchmark_runs_contenders_in_turns(tool, tmp_path):
    arguments = ["many-small", "--rounds", "4", "--repeats", "1", "--only", "vectorized, rec"]
    tool("benchmark").main([*arguments, "--output", str(tmp_path)])
    lines = rows(tmp_path / "many-small.csv")
    assert [(line[""], line["processes"]) for line in lines] == [
        ("floor", "1"),
        ("lfl vectorized, recorded", "1"),
        ("lfl vectorized, recorded", "2"),
    ]
    assert lines[0]["ratio"] == "1.00"
    assert all(float(line["ms"]) > 0 and float(line["peak MB"].replace(",", "")) > 100 for line in lines)


def test_a_workload_is_written_for_others(tool, tmp_path):
    tool("workloads").write("mlp", 3, tmp_path / "work.pt")
    work = torch.load(tmp_path / "work.pt", weights_only=True)
    assert work["participants"].shape == (3, 10)
    assert sorted(i for client in work["clients"] for i in client.tolist()) == list(range(4000))
    assert [tuple(p.shape) for p in work["state"]] == [(200, 784), (200,), (10, 200), (10,)]


@pytest.mark.parametrize("name", ["cnn", "mlp", "many-small", "resnet", "pfl-cifar"])
def test_the_networks_of_the_peers_are_ours(tool, monkeypatch, name):
    """Plain torch, with the parameters in the same order: the same outputs."""
    monkeypatch.syspath_prepend(str(TOOLS / "peers"))
    ours = tool("workloads").WORKLOADS[name].model().backbone
    theirs = importlib.import_module("networks").build(name)
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            other.copy_(mine)
        x = torch.rand(2, *((3, 32, 32) if name in ("resnet", "pfl-cifar") else (1, 28, 28)))
        torch.testing.assert_close(theirs(x), ours(x), rtol=0, atol=1e-5)
