"""Lists on the command line and in grid files become runs, in order and by name."""

from pathlib import Path

import pytest

from lfl.sweep.grid import GridError, combine, count, read_axes, split_values


def names(*words: str) -> list[str]:
    return [run.name for run in combine(read_axes(words))]


def refusal(*words: str) -> str:
    with pytest.raises(GridError) as error:
        read_axes(words)
    return str(error.value)


def test_the_first_setting_changes_slowest_and_arguments_keep_their_places() -> None:
    axes = read_axes(["--config", "a.yaml", "--seed_everything", "0,1", "--x=3", "--callbacks.mu", "0.01", "0.1"])
    runs = combine(axes)
    assert count(axes) == 4
    assert [run.name for run in runs] == [
        "seed_everything=0,mu=0.01",
        "seed_everything=0,mu=0.1",
        "seed_everything=1,mu=0.01",
        "seed_everything=1,mu=0.1",
    ]
    assert runs[2].arguments == ("--config=a.yaml", "--seed_everything=1", "--x=3", "--callbacks.mu=0.01")
    assert runs[2].values == {"seed_everything": "1", "callbacks.mu": "0.01"}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.1", ["0.1"]),
        ("", [""]),
        ("-1,1e-3", ["-1", "1e-3"]),
        ("[1,2]", ["[1,2]"]),
        ("[1,[2,3]],{a: 1, b: 2},f(x,y)", ["[1,[2,3]]", "{a: 1, b: 2}", "f(x,y)"]),
        ("'a,b',\"c,[\"", ["'a,b'", '"c,["']),
    ],
)
def test_commas_outside_of_brackets_and_quotes_separate(text: str, values: list[str]) -> None:
    assert split_values(text) == values


def test_configs_are_alternatives_within_an_option_and_layers_across_options() -> None:
    runs = combine(read_axes(["--config", "c/fedavg.yaml", "c/scaffold.yaml", "--config", "more.yaml"]))
    assert [run.name for run in runs] == ["fedavg", "scaffold"]
    assert runs[1].arguments == ("--config=c/scaffold.yaml", "--config=more.yaml")
    assert names("-c", "a/x.yaml,b/x.yaml") == ["a_x.yaml", "b_x.yaml"]


def test_names_tell_settings_and_values_apart() -> None:
    assert names("--optimizer.init_args.lr", "1,2", "--model.lr", "3,4")[0] == "optimizer.lr=1,model.lr=3"
    assert names("--model.hidden", "[64,32]", "[8]") == ["hidden=64_32", "hidden=8"]
    assert names("--trainer.callbacks+", "lfl.callbacks.SSF", "Scaffold") == ["callbacks=SSF", "callbacks=Scaffold"]
    assert names("--x", "a/b", "a:b") == ["x=a_b_0", "x=a_b_1"]
    assert names("--x", "1") == ["run"]
    long = names("--x", "a" * 200, "b" * 200)
    assert len(set(long)) == 2
    assert all(len(name) == 120 for name in long)


def test_no_folder_is_hidden(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("method: {../../escape: {x: 1}, .hidden: {x: 2}, ..: {x: 3}}\n")
    assert [run.name for run in combine(read_axes(["--grid", str(path)]))] == ["escape", "hidden", "run"]
    configs = combine(read_axes(["--config", "../a/x.yaml", "../b/x.yaml"]))
    assert [run.name for run in configs] == ["a_x.yaml", "b_x.yaml"]
    assert [run.name for run in combine(read_axes(["--lr", ".5", "5"]))] == ["lr=.5", "lr=5"]


def test_a_grid_file_stands_where_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(
        "optimizer.lr: [0.05, 1.0e-05]\n"
        "method:\n"
        "  plain:\n"
        "  near: {config: fedprox.yaml, trainer.callbacks.mu: 0.1, x: [1, null, true]}\n"
        "trainer.max_rounds: 5\n"
    )
    runs = combine(read_axes(["--config", "a.yaml", "--grid", str(path), "--seed_everything", "0,1"]))
    assert [run.name for run in runs[:4:2]] == ["lr=0.05,plain,seed_everything=0", "lr=0.05,near,seed_everything=0"]
    assert runs[-1].arguments == (
        "--config=a.yaml",
        "--optimizer.lr=1e-05",
        "--config=fedprox.yaml",
        "--trainer.callbacks.mu=0.1",
        "--x=[1, null, true]",
        "--trainer.max_rounds=5",
        "--seed_everything=1",
    )
    assert runs[-1].values == {"optimizer.lr": "1e-05", "method": "near", "seed_everything": "1"}


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert refusal("--x", "[1,2").startswith("`--x '[1,2'`: ] is missing.")
    assert refusal("--x", "1,").startswith("`--x 1,`: a value between commas is empty")
    assert refusal("--x", "1,2,1") == "`--x` has the value 1 twice."
    assert refusal("--grid") == "`--grid` has no value."
    assert refusal("0.1", "--x") == "'0.1' stands before every setting: a setting begins with `--`."
    assert refusal("--grid", "nowhere.yaml") == "`--grid nowhere.yaml` cannot be read: No such file or directory."
    for text, message in (
        ("[1]", "must be a mapping from settings to lists of values."),
        ("x: []", "has no values."),
        ("x: {a: 1}", "must be a list of values, or a mapping from names of variants to their settings."),
        ("x: [1", "cannot be read: while parsing a flow sequence"),
    ):
        (tmp_path / "grid.yaml").write_text(text)
        assert message in refusal("--grid", str(tmp_path / "grid.yaml"))
