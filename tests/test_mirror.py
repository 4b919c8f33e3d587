"""tests/ mirrors lfl/: the tests of ``lfl/a/b.py`` are in ``tests/a/test_b.py``, and nothing else is there."""

import ast
from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "lfl"

# Modules without a file of tests of their own, and why.
UNTESTED = {
    "version.py": "a constant, which tests/test_imports.py compares",
}
# Files of tests that are not those of one module; folders with a slash at their ends.
ELSEWHERE = {
    "contract/": "suites over all methods",
    "golden/": "numbers of independent implementations",
    "references/": "algorithms by hand, and that they are equal",
    "tools/": "mirrors tools/",
    "loggers/test_tensorboard.py": "a logger of Lightning's",
    "test_configs.py": "configs/",
    "test_docs.py": "README and docs/",
    "test_imports.py": "the package as a whole",
    "test_mirror.py": "this file",
}


def modules() -> list[Path]:
    """All modules with logic: without ``__init__``, which re-exports."""
    return sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def place_of_tests(module: Path) -> Path:
    """``tests/engine/test_base.py`` for ``engine/base.py``; ``tests/test_main.py`` for ``__main__.py``."""
    return module.with_name(f"test_{module.stem.strip('_')}.py")


def test_every_module_has_its_tests() -> None:
    missing = [str(module) for module in modules() if not (TESTS / place_of_tests(module)).exists()]
    assert missing == list(UNTESTED)


def test_every_file_of_tests_is_a_modules() -> None:
    known = {str(place_of_tests(module)) for module in modules()} | set(ELSEWHERE)
    found = [str(path.relative_to(TESTS)) for path in sorted(TESTS.rglob("test_*.py"))]
    assert [name for name in found if name not in known and f"{name.split('/')[0]}/" not in known] == []


def test_every_file_of_tests_asserts_something() -> None:
    """By ``assert``, or by a function of torch's or pytest's whose name says so."""

    def asserts(node: ast.AST) -> bool:
        name = getattr(node, "attr", "")
        return isinstance(node, ast.Assert) or name in ("assert_close", "raises", "warns")

    for module in modules():
        if str(module) not in UNTESTED:
            tree = ast.parse((TESTS / place_of_tests(module)).read_text())
            tests = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")]
            assert tests, module
            assert any(asserts(node) for node in ast.walk(tree)), module


def test_packages_reexport_only() -> None:
    """An ``__init__`` without functions needs no tests; lfl's own is tested in tests/test_imports.py."""
    for path in PACKAGE.rglob("__init__.py"):
        if path.parent != PACKAGE:
            kinds = (ast.FunctionDef, ast.ClassDef)
            assert not any(isinstance(node, kinds) for node in ast.walk(ast.parse(path.read_text()))), path
