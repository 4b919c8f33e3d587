"""One-line errors of the command line: the setting, its value, and what would be right.

For a setting whose type is a union, jsonargparse reports the errors of all alternatives, over many indented lines. Only
the first alternative is read here, since our unions begin with the usual case; its innermost error is put into words.
Any other message is shown as it is, on one line.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lfl.coming_from_lightning import SETTINGS
from lfl.trainer import FederatedTrainer

_EXTRAS = ("tensorboard", "wandb")
_LIBRARIES = ("jsonargparse", "lightning", "numpy", "torch", "torchvision", *sys.stdlib_module_names)
_PACKAGES = ("aggregation", "callbacks", "data", "loggers", "models", "participation", "subspace", "system")
_RATE = ("optimizer", "lr")
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
    "Sequence": "a list, such as [8, 16]",
    "dict": "a mapping",
}
# In a message of jsonargparse: the line that begins a nested setting or class, such as `Parser key "trainer":`; the
# names in a type, such as `<class 'a.B'>`, `list[a.B]` or `Literal['b']`; and the value that the user gave.
_LEVEL = re.compile(r"""(?:Parser key "(.+?)"(?:\[\d+\])?|Problem with given class_path '(.+?)'):?\s*""")
_TYPES = re.compile(r"Literal\[(.*?)\]|(\w+)(?='>|\]|$)")
_VALUE = re.compile(
    r"G\w+ value: (?:NestedArg\(.*, val='?(.*?)'?\)|(.*))$|: '?(\S+?)'?(?: does not conform.*)?$", re.MULTILINE
)


def one_line(message: str, options: Iterable[str] = (), words: Sequence[str] = ()) -> str:
    """Rewrite a message of jsonargparse, or any other message, on one line.

    Args:
        message: The message.
        options: The settings that the parser knows, such as ``trainer.max_rounds``; to find near names.
        words: The words of the command line.
    """
    sentence = _sentence(message, sorted(options), words)
    return sentence if sentence.endswith((".", "?", "!")) else sentence + "."


def describe_error(error: Exception) -> str:
    """The text of an error on one line; that of an OSError without its number."""
    if isinstance(error, OSError) and error.strerror:
        return one_line(f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
    text = str(error)
    text = one_line(text) if not text.startswith("Does not validate") else _follow(text)[3].partition("\n")[0]
    missing = [name for name in _EXTRAS if name in text and find_spec(name) is None]
    return f"{missing[0]} is not installed: `pip install {missing[0]}` brings it." if missing else text


def is_about_settings(error: Exception) -> bool:
    """Return whether the user can mend an error by a setting or a file, so that its message is enough without a trace.

    True if the error was raised by lfl or by a library that lfl called. False if it passed through the user's own code
    (except for ``check`` and ``on_run_start``, which refuse settings), or was raised by torch during a computation.
    """
    stack = [(f.f_globals.get("__name__", ""), f.f_code.co_name) for f, _ in traceback.walk_tb(error.__traceback__)]
    # From the outermost call inwards: what a `check` calls may be the user's code.
    for module, function in stack:
        if function == "check" or (module, function) == (stack[-1][0], "on_run_start"):
            break
        if module.partition(".")[0] not in ("lfl", *_LIBRARIES):
            return False
    if isinstance(error, ValueError | OSError):
        return True
    # A RuntimeError may come from anywhere in torch. It is about settings if lfl itself raised it (the last module of
    # the stack is lfl's), or if nothing of lfl but the parser was running.
    ours = [module for module, _ in stack if module.startswith("lfl.")]
    return isinstance(error, RuntimeError) and (ours[-1:] == [stack[-1][0]] or set(ours) <= {"lfl.cli.parser"})


def _follow(message: str) -> tuple[str, str, str, str]:
    """Find the innermost error of the first alternative.

    Returns:
        The setting (``trainer.callbacks``), the innermost class path, the types that the union accepts, and the rest of
        the message from the error on.
    """
    keys: list[str] = []
    class_path = ""
    types = ""
    lines = message.splitlines()
    for number, line in enumerate(lines):
        text = line.strip().removeprefix("- ")
        # One line may begin several levels; a new level forgets the types of the union outside.
        while level := _LEVEL.match(text):
            keys += [level[1]] if level[1] else []
            class_path, types, text = level[2] or class_path, "", text[level.end() :]
        if text.startswith("Subtypes: "):
            types = text
        # The first line that says what is wrong; the lines before it only say where.
        elif text and not text.startswith(("Does not validate", "Errors:", "Problems parsing", "Expected a path but")):
            return ".".join(keys), class_path, types, "\n".join([text, *lines[number + 1 :]])
    return ".".join(keys), class_path, types, message


def _sentence(message: str, options: list[str], words: Sequence[str]) -> str:
    """Put the innermost error of a message into words."""
    key, class_path, types, rest = _follow(message)
    text = rest.partition("\n")[0]
    if alone := re.fullmatch(r"argument (\S+): expected (?:one|at least one) argument", text):
        return f"`{_without_value(alone[1], words)}` needs a value"
    if unknown := re.search(r"unrecognized arguments: (.*)|not accept option '(.*)'", text):
        found = (unknown[1] or unknown[2]).split()
        names = [word.partition("=")[0] for word in found if word.startswith("-")] or found
        kind = "argument" if unknown[1] else "setting"
        return "; ".join(f"unknown {kind} `{name}`{_near_option(name, options)}" for name in names)
    if missing := re.match(r"the following arguments are required: (.*)", text):
        if class_path:
            return f"`{key}`: {class_path.rpartition('.')[2]} needs `{missing[1]}`"
        subcommand, _, name = missing[1].rpartition(".")
        return f"`lfl {subcommand}` needs a `{name}`: give `--config FILE` with one, or `--{name} CLASS`"
    if not key:
        return " ".join(message.split())
    match = _VALUE.search(rest)
    value = next(filter(None, match.groups()), "") if match else ""  # the text of the alternative that matched
    unknown = re.search(r"Option '(.*?)' is not accepted(?:.*?class_path='(.*?)')?", text)
    if _is_empty(f"{key}.{unknown[1]}" if unknown else key, words):
        return f"`--{key}{f'.{unknown[1]}' if unknown else ''}` needs a value"
    if unknown:
        owner, name = _class_of(unknown[2] or class_path), unknown[1]
        return f"`{key}.{name}`: {_without_class(owner, key, name, value) or _unknown_argument(owner, name)}"
    return _wrong_value(key, value, text, _names(types))


def _wrong_value(key: str, value: str, text: str, types: list[str]) -> str:
    """Say which value of setting ``key`` is wrong and what it must be.

    Args:
        key: The setting.
        value: What the user gave.
        text: The error.
        types: The types that the setting accepts.
    """
    shown = value if len(value) <= 80 else value[:77] + "..."
    if text.startswith("Not a valid subclass"):
        return f"`{key}` takes a `class_path` and, with all arguments of the class below it, `init_args`; got {shown}"
    if "not correspond to a subclass" in text:
        return f"`{key}`: {value} is not a {text.rpartition(' ')[2]}"
    if "has no attribute" in text:
        module, _, name = value.rpartition(".")
        there = vars(sys.modules[module]) if module in sys.modules else _known_classes()  # what its own file has
        return f"`{key}`: {text}{_near(name, [other for other in there if not other.startswith('_')])}"
    if text.startswith("Expected a dot import path") and not {"int", "float"} & set(types):
        bases = " or ".join(kind for kind in types if kind not in _WORDS) or "class"
        hint = _near(value, _known_classes()) or "; a class of your own needs its import path"
        return f"`{key}`: there is no {bases} {value!r}{hint}"
    if tuple_of := re.match(r"Expected a tuple with (\d+) elements", text):
        return f"`{key}={shown}` must be a list of {tuple_of[1]} values"
    if text.startswith(("Not of type", "Expected a")):
        kinds = types or _names(re.split(r": |\. Got", text)[0])
        kinds = [kind for kind in kinds if kind != "int" or "float" not in kinds]  # every whole number is a number
        words = " or ".join(_WORDS.get(kind, kind if "'" in kind else f"a {kind}") for kind in kinds)
        choices = [kind.strip("'") for kind in kinds if "'" in kind]
        return f"`{key}={shown}` must be {words}{_near(value, choices)}"
    return f"`{key}`: {text}"


def _names(types: str) -> list[str]:
    """The names in jsonargparse's text of a type, each once, without None; the values of a Literal are in quotes."""
    names = [name for literal, name in _TYPES.findall(types) for name in (literal.split(", ") if literal else [name])]
    return [name for name in dict.fromkeys(names) if name != "NoneType"]


def _without_value(option: str, words: Sequence[str]) -> str:
    """The word of the command line that has no value: ``--optimizer.lr``, where argparse says ``--optimizer``."""
    names = option.split("/")  # argparse names all that an option is called
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        is_option = any(word == name or word.startswith(f"{name}.") for name in names)
        if is_option and "=" not in word and following.startswith("--"):
            return word
    return names[-1]


def _is_empty(key: str, words: Sequence[str]) -> bool:
    """Return whether the command line gives a setting the empty text: ``--optimizer.lr=``."""
    return f"--{key}=" in words or (f"--{key}", "") in pairwise(words)


def _class_of(class_path: str) -> type:
    module, _, class_name = class_path.rpartition(".")
    found: type = getattr(import_module(module), class_name)
    return found


def _without_class(kind: type, key: str, name: str, value: str) -> str:
    """Say that no class was named of which this could be an argument; empty where one was."""
    if not (inspect.isabstract(kind) or kind in (Optimizer, LRScheduler)):
        return ""
    able = [cls for cls, of in _known_classes().items() if issubclass(of, kind) and name in _arguments(of)]
    example = f"--{key} {'SGD' if 'SGD' in able else able[0]} --{key}.{name} {value}" if able else f"--{key} CLASS"
    own = f"; a model with a rate of its own has it in `--model.{name} {value}`" if (key, name) == _RATE else ""
    return f"no `{key}` is given that could have it: name its class first, `{example}`{own}"


def _unknown_argument(kind: type, name: str) -> str:
    """Say that a class has no such argument, and which argument may be meant."""
    if kind is FederatedTrainer and name in SETTINGS:
        return f"{kind.__name__} has no argument `{name}`: {SETTINGS[name]}"
    arguments = _arguments(kind)
    hint = _near(name, arguments) or _owners(name) or f"; it takes {', '.join(arguments) or 'none'}"
    return f"{kind.__name__} has no argument `{name}`{hint}"


def _near_option(name: str, options: list[str]) -> str:
    bare = name.lstrip("-")
    last = bare.rpartition(".")[2]
    if bare == f"trainer.{last}" and last in SETTINGS:
        return f": {SETTINGS[last]}"
    known = [option.lstrip("-") for option in options]
    names = [path for path in known if not path.endswith(".help")]
    # Of a setting that takes a class, the parser knows only that it has a help; what is below depends on the class.
    below = [path for owner in known if owner.endswith(".help") for path in _below(owner.removesuffix(".help"), bare)]
    near = difflib.get_close_matches(bare, [*names, *below], 1, 0.7)
    near = near or [path for path in names if path.endswith(f".{last}")]
    return f"; did you mean `{'--' if name.startswith('-') else ''}{near[0]}`?" if near else _owners(last)


def _below(owner: str, name: str) -> list[str]:
    """The same argument of a setting that takes a class, if the name's own first parts are near that setting's.

    >>> _below("optimizer", "optimiser.lr"), _below("model", "optimiser.lr")
    (['optimizer.lr'], [])
    """
    parts, parts_of_owner = name.split("."), owner.split(".")
    count = len(parts_of_owner)
    is_near = all(difflib.get_close_matches(a, [b], 1, 0.7) for a, b in zip(parts, parts_of_owner, strict=False))
    return [".".join([owner, *parts[count:]])] if is_near and len(parts) > count else []


def _owners(argument: str) -> str:
    """Name the classes of lfl that have an argument, for a user who put it on the wrong level of a config."""
    ours = {name: cls for name, cls in _known_classes().items() if cls.__module__.startswith("lfl.")}
    *others, last = sorted(name for name, cls in ours.items() if argument in _arguments(cls)) or [""]
    names = f"{', '.join(others)} and {last}" if others else last
    return f"; it is an argument of {names}: mind the level" if last else ""


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), 1, 0.6)
    return f"; did you mean `{near[0]}`?" if near else ""


def _known_classes() -> dict[str, type]:
    """The classes that the command line knows by their short names, by name."""
    packages = [*(f"lfl.{name}" for name in _PACKAGES), "torch.optim", "torch.optim.lr_scheduler"]
    items = [item for package in packages for item in vars(import_module(package)).items()]
    return {name: item for name, item in items if isinstance(item, type) and not name.startswith("_")}


def _arguments(cls: type) -> list[str]:
    try:
        return [name for name in inspect.signature(cls).parameters if name not in ("args", "kwargs")]
    except ValueError:  # a builtin
        return []
