"""The entry point answers without importing what it does not need."""

import subprocess
import sys
from pathlib import Path

import pytest
from contract.methods import also

import lfl
from lfl.__main__ import SUBCOMMANDS, main


@pytest.mark.parametrize("args", [also(("--help",)), ("fit", "--help")])
def test_help_does_not_import_what_it_does_not_need(args: tuple[str, ...], tmp_path: Path):
    code = (
        "import sys\nfrom lfl.__main__ import main\n"
        f"try: main({list(args)!r})\nexcept SystemExit: pass\n"
        "print([m for m in ('wandb', 'sklearn', 'mlxtend', 'tensorboard') if m in sys.modules])\n"
        "print('lightning' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert result.stdout.splitlines()[-2:] == ["[]", str("fit" in args)]
    assert "--trainer.max_rounds" in result.stdout or args == ("--help",)


def test_misspelt_subcommands_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for name, hint in (("fti", "did you mean 'fit'?"), ("xyz", f"the subcommands are {', '.join(SUBCOMMANDS)}.")):
        with pytest.raises(SystemExit) as end:
            main([name])
        assert end.value.code == 2
        assert capsys.readouterr().err == f"lfl: error: unknown subcommand {name!r}; {hint}\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("sweep", "--resume", "none"), "none is not the folder of a sweep: none/sweep.yaml cannot be read."),
        (("report", "none"), "no runs in 'none' (does not exist)"),
        (("partition",), "`lfl partition` needs `data`"),
        (("fit",), "`lfl fit` needs a `model`"),
    ],
)
def test_each_subcommand_has_its_own_program(
    args: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(list(args))
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"lfl {lfl.__version__}\n"
