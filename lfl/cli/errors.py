"""Errors of the command line on one line: the setting, its value, what would be right.

jsonargparse lists every alternative of a union over many indented lines. The first one is what the user meant, for our
unions begin with the usual case: it is followed to its end, and the end is put into words. Messages of any other kind
are shown as they are, on one line.
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
_LIBRARIES = ("jsonargparse", "lightning", "numpy", "torch", "torchvision", *sys.stdlib_module_names)
_PACKAGES = ("aggregation", "callbacks", "data", "loggers", "models", "participation", "subspace")
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
# A step into a setting or into a class; a name in `<class 'a.B'>`, `list[a.B]` or `Literal['b']`; the value given.
_LEVEL = re.compile(r"""(?:Parser key "(.+?)"(?:\[\d+\])?|Problem with given class_path '(.+?)'):?\s*""")
_TYPES = re.compile(r"Literal\[(.*?)\]|(\w+)(?='>|\]|$)")
_VALUE = re.compile(
    r"G\w+ value: (?:NestedArg\(.*, val='?(.*?)'?\)|(.*))$|: '?(\S+?)'?(?: does not conform.*)?$", re.MULTILINE
)


def one_line(message: str, options: Iterable[str] = ()) -> str:
    """A message of jsonargparse, or any other, as one sentence or two.

    Args:
        message: The text.
        options: The settings that the parser knows, such as ``trainer.max_rounds``.
    """
    sentence = _sentence(message, sorted(options))
    return sentence if sentence.endswith((".", "?", "!")) else sentence + "."


def describe_error(error: Exception) -> str:
    """The text of an error on one line, without the number of an OSError."""
    if isinstance(error, OSError) and error.strerror:
        return one_line(f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
    text = str(error)
    text = one_line(text) if not text.startswith("Does not validate") else _follow(text)[3].partition("\n")[0]
    missing = [name for name in _EXTRAS if name in text and find_spec(name) is None]
    return f"{missing[0]} is not installed: `pip install {missing[0]}` brings it." if missing else text


def is_about_settings(error: Exception) -> bool:
    """Whether an error is for the user to mend, by a setting or a file: raised by lfl, or in a library that lfl called.

    What passes through code of the user's own (but a ``check``, which is there to refuse settings), or breaks inside
    torch during a computation, needs its traceback.
    """
    stack = [(f.f_globals.get("__name__", ""), f.f_code.co_name) for f, _ in traceback.walk_tb(error.__traceback__)]
    for module, function in stack:
        if function == "check":
            break
        if module.partition(".")[0] not in ("lfl", *_LIBRARIES):
            return False
    if isinstance(error, ValueError | OSError):
        return True
    ours = [module for module, _ in stack if module.startswith("lfl.")]
    return isinstance(error, RuntimeError) and (ours[-1:] == [stack[-1][0]] or set(ours) <= {"lfl.cli.parser"})


def _follow(message: str) -> tuple[str, str, str, str]:
    """Where the first alternative ends: the setting, its innermost class, what the union accepts, and the rest."""
    keys, class_path, types = [], "", ""
    lines = message.splitlines()
    for number, line in enumerate(lines):
        text = line.strip().removeprefix("- ")
        while level := _LEVEL.match(text):
            keys += [level[1]] if level[1] else []
            class_path, types, text = level[2] or class_path, "", text[level.end() :]
        if text.startswith("Subtypes: "):
            types = text
        elif text and not text.startswith(("Does not validate", "Errors:", "Problems parsing", "Expected a path but")):
            return ".".join(keys), class_path, types, "\n".join([text, *lines[number + 1 :]])
    return ".".join(keys), class_path, types, message


def _sentence(message: str, options: list[str]) -> str:
    key, class_path, types, rest = _follow(message)
    text = rest.partition("\n")[0]
    if unknown := re.search(r"unrecognized arguments: (.*)|not accept option '(.*)'", text):
        words = (unknown[1] or unknown[2]).split()
        names = [word.partition("=")[0] for word in words if word.startswith("-")] or words
        kind = "argument" if unknown[1] else "setting"
        return "; ".join(f"unknown {kind} `{name}`{_near_option(name, options)}" for name in names)
    if missing := re.match(r"the following arguments are required: (.*)", text):
        if class_path:
            return f"`{key}`: {class_path.rpartition('.')[2]} needs `{missing[1]}`"
        subcommand, _, name = missing[1].rpartition(".")
        return f"`lfl {subcommand}` needs a `{name}`: give `--config FILE` with one, or `--{name} CLASS`"
    if not key:
        return " ".join(message.split())
    if unknown := re.search(r"Option '(.*?)' is not accepted(?:.*?class_path='(.*?)')?", text):
        return f"`{key}.{unknown[1]}`: {_unknown_argument(unknown[2] or class_path, unknown[1])}"
    value = next(filter(None, found.groups()), "") if (found := _VALUE.search(rest)) else ""
    return _wrong_value(key, value, text, _names(types))


def _wrong_value(key: str, value: str, text: str, types: list[str]) -> str:
    shown = value if len(value) <= 80 else value[:77] + "..."
    if text.startswith("Not a valid subclass"):
        return f"`{key}` takes a `class_path` and, with all arguments of the class below it, `init_args`; got {shown}"
    if "not correspond to a subclass" in text:
        return f"`{key}`: {value} is not a {text.rpartition(' ')[2]}"
    if "has no attribute" in text:
        return f"`{key}`: {text}{_near(value.rpartition('.')[2], _known_classes())}"
    if text.startswith("Expected a dot import path") and not {"int", "float"} & set(types):
        bases = " or ".join(kind for kind in types if kind not in _WORDS) or "class"
        hint = _near(value, _known_classes()) or "; a class of your own needs its import path"
        return f"`{key}`: there is no {bases} {value!r}{hint}"
    if text.startswith(("Not of type", "Expected a")):
        kinds = types or _names(re.split(r": |\. Got", text)[0])
        kinds = [kind for kind in kinds if kind != "int" or "float" not in kinds]  # every whole number is a number
        words = " or ".join(_WORDS.get(kind, kind if "'" in kind else f"a {kind}") for kind in kinds)
        choices = [kind.strip("'") for kind in kinds if "'" in kind]
        return f"`{key}={shown}` must be {words}{_near(value, choices)}"
    return f"`{key}`: {text}"


def _names(types: str) -> list[str]:
    """The names in jsonargparse's text of a type, each once and None left out; what stands for itself is quoted."""
    found = [name for literal, name in _TYPES.findall(types) for name in (literal.split(", ") if literal else [name])]
    return [name for name in dict.fromkeys(found) if name != "NoneType"]


def _unknown_argument(class_path: str, name: str) -> str:
    """That a class has no such argument, and which one may be meant."""
    module, _, class_name = class_path.rpartition(".")
    arguments = _arguments(getattr(import_module(module), class_name))
    hint = _near(name, arguments) or _owners(name) or f"; it takes {', '.join(arguments) or 'none'}"
    return f"{class_name} has no argument `{name}`{hint}"


def _near_option(name: str, options: list[str]) -> str:
    bare, last = name.lstrip("-"), name.lstrip("-").rpartition(".")[2]
    names = [option.lstrip("-") for option in options]
    near = difflib.get_close_matches(bare, names, 1, 0.7) or [path for path in names if path.endswith(f".{last}")]
    return f"; did you mean `{'--' if name.startswith('-') else ''}{near[0]}`?" if near else _owners(last)


def _owners(argument: str) -> str:
    """The classes of lfl that have an argument, for a user who put it on another level."""
    ours = {name: cls for name, cls in _known_classes().items() if cls.__module__.startswith("lfl.")}
    owners = [name for name, cls in ours.items() if argument in _arguments(cls)]
    return f"; it is an argument of {' and '.join(owners[:2])}: mind the level" if owners else ""


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), 1, 0.6)
    return f"; did you mean `{near[0]}`?" if near else ""


def _known_classes() -> dict[str, type]:
    """The classes that the command line knows by their short names."""
    packages = [*(f"lfl.{name}" for name in _PACKAGES), "torch.optim", "torch.optim.lr_scheduler"]
    items = [item for package in packages for item in vars(import_module(package)).items()]
    return {name: item for name, item in items if isinstance(item, type) and not name.startswith("_")}


def _arguments(cls: type) -> list[str]:
    try:
        return [name for name in inspect.signature(cls).parameters if name not in ("args", "kwargs")]
    except ValueError:  # a builtin
        return []
