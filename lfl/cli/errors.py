"""Errors of the command line on one line: the setting, the value, what would be right.

jsonargparse reports every alternative of a union over many indented lines. Its first branch is the one that the user
meant: it is followed to its end, and the end is put into words.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import traceback
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec

_EXTRAS = ("tensorboard", "wandb")
_LIBRARIES = ("jsonargparse", "lightning", "numpy", "torch", "torchvision")
_PACKAGES = (
    "lfl.aggregation",
    "lfl.callbacks",
    "lfl.data",
    "lfl.loggers",
    "lfl.models",
    "lfl.participation",
    "lfl.subspace",
    "torch.optim",
    "torch.optim.lr_scheduler",
)
_WORDS = {
    "PositiveInt": "a whole number of at least 1",
    "NonNegativeInt": "a whole number of at least 0",
    "PositiveFloat": "a number above 0",
    "NonNegativeFloat": "a number of at least 0",
    "ClosedUnitInterval": "a number from 0 to 1",
    "OpenUnitInterval": "a number above 0 and below 1",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "list": "a list",
    "dict": "a mapping",
}
_LEVEL = re.compile(r"""(?:Parser key "(?P<key>.+?)"(?:\[\d+\])?|Problem with given class_path '(?P<cls>.+?)'):?\s*""")
_SKIPPED = ("Does not validate against", "Errors:", "Problems parsing config:")
_VALUE = re.compile(r"Got value: (.*)$|: (\S+) (?:does not conform|not a number)|: '([^']*)'$")
_GIVEN_VALUE = re.compile(r"^\s*Given value: (?:NestedArg\(key=.*, val=(.*)\)|(.*))$", re.MULTILINE)


class _Leaf:
    """Where the first branch of a message ends.

    Attributes:
        key: the dotted name of the setting.
        cls: the class path of the innermost class on the way.
        types: what the innermost union accepts.
        text: what is wrong.
        value: the given value, as text, or empty.
    """

    def __init__(self, message: str) -> None:
        self.key, self.cls, self.text = "", "", ""
        self.types: list[str] = []
        keys: list[str] = []
        lines = message.splitlines()
        for number, line in enumerate(lines):
            text = line.strip().removeprefix("- ")
            while level := _LEVEL.match(text):
                keys += [level["key"]] if level["key"] else []
                self.cls = level["cls"] or self.cls
                self.types, text = [], text[level.end() :]
            if text.startswith("Subtypes: "):
                self.types = _type_names(text)
            elif text and not text.startswith((*_SKIPPED, "Expected a path but")):
                self.text, lines = text, lines[number:]
                break
        self.key = ".".join(keys)
        value = _VALUE.search(self.text) or _GIVEN_VALUE.search("\n".join(lines))
        self.value = next(filter(None, value.groups()), "").strip("'") if value else ""


def one_line(message: str, options: Iterable[str] = ()) -> str:
    """A message of jsonargparse, or any other, as one sentence or two.

    Args:
        message: the text.
        options: the settings that the parser knows, such as ``trainer.max_rounds``.
    """
    sentence = _sentence(message, sorted(options))
    return sentence if sentence.endswith((".", "?", "!")) else sentence + "."


def is_about_settings(error: Exception) -> bool:
    """Whether an error is for the user to mend, by a setting or a file: raised by lfl, or in a library that lfl called.

    What passes through code of the user's own (but a ``check``, which is there to refuse settings), or breaks inside
    torch during a computation, needs its traceback.
    """
    stack = [(f.f_globals.get("__name__", ""), f.f_code.co_name) for f, _ in traceback.walk_tb(error.__traceback__)]
    for module, function in stack:
        if function == "check":
            break
        if module.partition(".")[0] not in ("lfl", *_LIBRARIES, *sys.stdlib_module_names):
            return False
    if isinstance(error, ValueError | OSError):
        return True
    ours = [module for module, _ in stack if module.startswith("lfl.")]
    return isinstance(error, RuntimeError) and (ours[-1:] == [stack[-1][0]] or set(ours) <= {"lfl.cli.parser"})


def describe_error(error: Exception) -> str:
    """The text of an error on one line, without the number of an OSError."""
    if isinstance(error, OSError) and error.strerror:
        return one_line(f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
    text = str(error)
    text = one_line(text) if not text.startswith("Does not validate") else _Leaf(text).text
    missing = [name for name in _EXTRAS if name in text and find_spec(name) is None]
    return f"{missing[0]} is not installed; `pip install 'lfl[{missing[0]}]'` brings it." if missing else text


def _sentence(message: str, known: list[str]) -> str:
    leaf = _Leaf(message)
    if unknown := re.match(r"unrecognized arguments: (.*)", leaf.text):
        names = [word.partition("=")[0] for word in unknown[1].split() if word.startswith("-")] or unknown[1].split()
        return "; ".join(f"unknown argument `{name}`{_near_option(name, known)}" for name in names)
    if unknown := re.search(r"not accept option '(.*)'", leaf.text):
        return f"unknown setting `{unknown[1]}`{_near_option(unknown[1], known)}"
    if needed := re.match(r"the following arguments are required: (.*)", leaf.text):
        return _missing(leaf, needed[1])
    if not leaf.key:
        return " ".join(line.strip() for line in message.splitlines() if line.strip())
    if rejected := re.search(r"Option '(.*?)' is not accepted", leaf.text):
        cls = re.search(r"class_path='(.*?)'", leaf.text)
        return f"`{leaf.key}.{rejected[1]}`: {_near_argument(cls[1] if cls else leaf.cls, rejected[1])}"
    return _wrong_value(leaf)


def _wrong_value(leaf: _Leaf) -> str:
    text, types = leaf.text, leaf.types
    if name := re.match(r"Expected a dot import path string: (.*)", text):
        if "float" in types or "int" in types:
            return f"`{leaf.key}={name[1]}` must be {_words(types)}"
        bases = " or ".join(kind for kind in types if kind not in _WORDS)
        hint = _near(name[1], _known_classes()) or "; a class of your own needs its import path"
        return f"`{leaf.key}`: there is no {bases or 'class'} {name[1]!r}{hint}"
    if wrong := re.match(r"Import path (.*?) ?does not correspond to a subclass of (.*)", text):
        return f"`{leaf.key}`: {wrong[1] or leaf.value} is not a {wrong[2]}"
    if unknown := re.match(r"module '(.*)' has no attribute '(.*)'", text):
        names = [name for name in vars(import_module(unknown[1])) if not name.startswith("_")]
        return f"`{leaf.key}`: {unknown[1]} has no class {unknown[2]!r}{_near(unknown[2], names)}"
    if text.startswith("Not a valid subclass of"):
        return (
            f"`{leaf.key}` takes a `class_path` and, with all arguments of the class below it, `init_args`; "
            f"got {_cut(leaf.value)}"
        )
    if literal := re.search(r"Literal\[(.*?)\]", text):
        hint = _near(leaf.value, [choice.strip("' ") for choice in literal[1].split(",")])
        return f"`{leaf.key}={leaf.value}` must be one of {literal[1]}{hint}"
    if match := re.match(r"Not of type (\w+)|Expected a <class '([\w.]+)'>", text):
        kinds = types or [(match[1] or match[2]).rsplit(".", 1)[-1]]
        return f"`{leaf.key}={_cut(leaf.value)}` must be {_words(kinds)}"
    return f"`{leaf.key}`: {text}"


def _missing(leaf: _Leaf, names: str) -> str:
    if leaf.cls:
        return f"`{leaf.key}`: {leaf.cls.rsplit('.', 1)[-1]} needs `{names}`"
    subcommand, _, name = names.rpartition(".")
    return f"`lfl {subcommand}` needs a `{name}`: give `--config FILE` with one, or `--{name} CLASS`"


def _near_argument(class_path: str, argument: str) -> str:
    """That a class has no such argument, and which it may be, or whose it is."""
    module, _, name = class_path.rpartition(".")
    accepted = _arguments(getattr(import_module(module), name))
    hint = _near(argument, accepted)
    ours = {other: cls for other, cls in _known_classes().items() if cls.__module__.startswith("lfl.")}
    owners = [other for other, cls in ours.items() if argument in _arguments(cls)]
    if not hint and owners:
        hint = f"; {', '.join(owners)} {'has' if len(owners) == 1 else 'have'} one: mind the level"
    elif not hint:
        hint = f"; it takes {', '.join(accepted) or 'none'}"
    return f"{name} has no argument `{argument}`{hint}"


def _near_option(name: str, options: list[str]) -> str:
    bare = name.lstrip("-")
    names = [option.lstrip("-") for option in options]
    same_end = [option for option in names if option.endswith(f".{bare.rpartition('.')[2]}")]
    near = difflib.get_close_matches(bare, names, 1, 0.7) or same_end[:1]
    if near:
        return f"; did you mean `{'--' if name.startswith('-') else ''}{near[0]}`?"
    owners = [other for other, cls in _known_classes().items() if bare.rpartition(".")[2] in _arguments(cls)]
    return f"; it is an argument of {' and '.join(owners[:2])}: mind the level" if owners else ""


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), 1, 0.6)
    return f"; did you mean `{near[0]}`?" if near else ""


def _known_classes() -> dict[str, type]:
    found = {}
    for package in _PACKAGES:
        for name, item in vars(import_module(package)).items():
            if isinstance(item, type) and not name.startswith("_"):
                found[name] = item
    return found


def _arguments(cls: type) -> list[str]:
    try:
        return [name for name in inspect.signature(cls).parameters if name not in ("args", "kwargs")]
    except ValueError:  # a builtin
        return []


def _type_names(text: str) -> list[str]:
    """The names in ``Subtypes: [<class 'int'>, list[a.b.C], Literal['d'], <class 'NoneType'>]``, each once.

    None is left out, and what stands for itself keeps its quotes.
    """
    names = [path.rsplit(".", 1)[-1] for path in re.findall(r"([\w.]+)(?='>|\])", text)]
    names += [choice.strip() for literal in re.findall(r"Literal\[(.*?)\]", text) for choice in literal.split(",")]
    return [name for name in dict.fromkeys(names) if name != "NoneType"]


def _words(types: list[str]) -> str:
    """What a value of one of these types is; every whole number is a number."""
    kinds = [kind for kind in types if kind != "int" or "float" not in types]
    return " or ".join(_WORDS.get(kind, kind.strip("'") if "'" in kind else f"a {kind}") for kind in kinds)


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
