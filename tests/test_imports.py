"""Every package can be the first one that is imported, and the package itself is quick."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import lfl
import lfl.trainer

# In one process, which has the libraries loaded; lfl itself is forgotten before each import.
_PROGRAM = """
import importlib, sys
import lfl.trainer
for name in sys.argv[1:]:
    for known in [known for known in sys.modules if known.split(".")[0] == "lfl"]:
        del sys.modules[known]
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(name, error)
"""


@pytest.mark.slow
def test_every_package_can_be_imported_first() -> None:
    root = Path(lfl.__file__).parent
    names = [".".join(path.parent.relative_to(root.parent).parts) for path in sorted(root.rglob("*/__init__.py"))]
    done = subprocess.run([sys.executable, "-c", _PROGRAM, *names], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr[-2000:]
    assert "lfl.engine" in names


def test_no_import_circle() -> None:
    """Between modules as written, for type checkers only included."""
    root = Path(lfl.__file__).parent
    paths = {".".join(p.relative_to(root.parent).with_suffix("").parts): p for p in root.rglob("*.py")}
    arrows: dict[str, set[str]] = {}
    for name, path in paths.items():
        found = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom) and n.module]
        places = [f"{node.module}.{alias.name}" for node in found for alias in node.names]
        arrows[name] = {p for place in places for p in (place, place.rpartition(".")[0]) if p in paths} - {name}
    graphlib.TopologicalSorter(arrows).prepare()  # raises CycleError, which names the circle


@pytest.mark.slow
def test_the_trainer_is_imported_when_it_is_asked_for() -> None:
    code = (
        "import sys, lfl\n"
        "print(lfl.__version__, [name for name in ('torch', 'lightning', 'numpy') if name in sys.modules])\n"
        "from lfl import FederatedTrainer\n"
        "print(FederatedTrainer.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{lfl.__version__} []", "lfl.trainer"]


def test_what_the_package_offers() -> None:
    assert lfl.FederatedTrainer is lfl.trainer.FederatedTrainer
    assert all(hasattr(lfl, name) for name in lfl.__all__)
    with pytest.raises(AttributeError, match="module 'lfl' has no attribute 'nonsense'"):
        _ = lfl.nonsense
