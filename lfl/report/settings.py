"""Settings of runs by their dotted names: which differ between runs, and what to call runs by them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Setting: TypeAlias = "str | int | float | bool | None"
Settings: TypeAlias = Mapping[str, Setting]

METHOD = "trainer.callbacks"
MAX_ROUNDS = "trainer.max_rounds"
EVALUATIONS = "trainer.check_val_every_n_rounds"
WEIGHTING = "trainer.aggregator.weighting"
PLAIN = "FedAvg"  # what runs without algorithms in their stack
# Callbacks that look on and change nothing: runs with and without them are equal.
OBSERVERS = frozenset(
    {"AveragedEvaluation", "ClientEvaluation", "Diagnostics", "FeaturePictures", "SystemPictures", "TrajectoryPictures"}
)
# What an observer does to a copy of the model before it looks: runs that differ in it have other numbers.
_MEASURING = {"ClientEvaluation": ("fine_tune",)}
# Where a run's files lie and how it is shown: no matter of its numbers.
_OUTSIDE = (
    "ckpt_path",
    "config",
    "trainer.checkpoint",
    "trainer.checkpointing",
    "trainer.default_root_dir",
    "trainer.enable_progress_bar",
    "trainer.logger",
)
_CLASS = re.compile(r"(?:[A-Za-z_]\w*\.)+([A-Za-z_]\w*)")


def flatten(config: Mapping[str, Any]) -> dict[str, Setting]:
    """The settings of a ``config.yaml`` by dotted names, without ``class_path`` and ``init_args`` in them.

    A class is a setting of its own, beside its arguments. What is in a list of classes is named by its class, the
    second of one class with a number. Seeds are among them; where files go, and callbacks that only observe, are not,
    but for what these do to a copy of the model before they look at it.

    >>> flatten({"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}})
    {'optimizer': 'torch.optim.SGD', 'optimizer.lr': 0.1}
    >>> flatten({"trainer": {"callbacks": [{"class_path": "lfl.callbacks.Proximal", "init_args": {"mu": 1.0}}]}})
    {'trainer.callbacks': 'lfl.callbacks.Proximal', 'trainer.callbacks.Proximal.mu': 1.0}
    """
    return {
        key: value
        for key, value in _walk(config, "")
        if not any(key == outside or key.startswith(f"{outside}.") for outside in _OUTSIDE)
    }


def of_description(description: Mapping[str, Any]) -> dict[str, Any]:
    """A run's own description of its settings, its ``hparams.yaml``, in the form of a ``config.yaml``.

    >>> of_description({"trainer": {"seed": 1}, "callbacks": [{"class": "lfl.callbacks.Proximal", "mu": 0.1}]})
    {'trainer': {'seed': 1, 'callbacks': [{'class_path': 'lfl.callbacks.Proximal', 'init_args': {'mu': 0.1}}]}}
    """
    if not description:
        return {}
    found: dict[str, Any] = {key: _classes(value) for key, value in description.items() if key != "callbacks"}
    found["trainer"] = {**found.get("trainer", {}), "callbacks": _classes(description.get("callbacks", []))}
    # Which examples the partition drew follows from its seed.
    found.get("data", {}).get("init_args", {}).pop("partition", None)
    return found


def _classes(value: Any) -> Any:
    if isinstance(value, list):
        return [_classes(entry) for entry in value]
    if not isinstance(value, Mapping):
        return value
    members = {key: _classes(entry) for key, entry in value.items() if key != "class"}
    return {"class_path": value["class"], "init_args": members} if "class" in value else members


def is_seed(key: str) -> bool:
    """Return whether runs of one group may differ in a setting.

    >>> [is_seed(key) for key in ("seed_everything", "data.seed", "data.num_clients")]
    [True, True, False]
    """
    return key.rpartition(".")[2] in ("seed", "seed_everything")


def differing(runs: Sequence[Settings]) -> list[str]:
    """The settings, without seeds, that have two values among the runs that have them, in the order of the configs.

    So an argument of a class is one only if it was varied: not where it comes and goes with its class. Of settings that
    the command line links, which have one name and equal values, the first is one.
    """
    values: dict[str, set[Setting]] = {}
    for settings in runs:
        for key, value in settings.items():
            values.setdefault(key, set()).add(value)
    varied = [key for key in values if len(values[key]) > 1 and not is_seed(key)]
    columns: dict[str, str] = {}
    for key in varied:
        columns.setdefault(repr((key.rpartition(".")[2], [run.get(key, "absent") for run in runs])), key)
    return sorted(columns.values(), key=lambda key: key != METHOD)


def shared(runs: Sequence[Settings]) -> dict[str, Setting]:
    """The settings that all runs have, with one value."""
    first = runs[0] if runs else {}
    return {key: value for key, value in first.items() if all(key in run and run[key] == value for run in runs)}


def short_names(keys: Sequence[str], reserved: Iterable[str] = ()) -> dict[str, str]:
    """A short name for each key: its last parts, as many as tell it from the others and from what is reserved.

    >>> short_names(["optimizer.lr", "model.lr", "trainer.callbacks.Proximal.mu"])
    {'optimizer.lr': 'optimizer.lr', 'model.lr': 'model.lr', 'trainer.callbacks.Proximal.mu': 'mu'}
    """
    taken = set(reserved)
    names = {}
    for key in keys:
        parts = key.split(".")
        ends = [".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1)]
        others = [other for other in keys if other != key]
        free = (
            end for end in ends if end not in taken and not any(f".{other}".endswith(f".{end}") for other in others)
        )
        names[key] = next(free, key)
    return names


def shown(value: Setting) -> str:
    """A setting as a reader wants it: a class without its module.

    >>> shown("lfl.callbacks.Proximal + my.Method"), shown(None), shown(0.1), shown(True)
    ('Proximal + Method', 'none', '0.1', 'true')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return " + ".join(_CLASS.sub(r"\1", part) for part in str(value).split(" + "))


def labels(groups: Sequence[Settings], names: Mapping[str, str]) -> list[str]:
    """A label for each group, of as few of the differing settings as tell the groups apart.

    Args:
        groups: the differing settings of each group, which are no two times the same; ``others`` is one without any.
        names: short names of those settings, in the order of their weight.
    """
    chosen: list[str] = []
    for key in names:
        if len(_signatures(groups, [*chosen, key])) > len(_signatures(groups, chosen)):
            chosen.append(key)
    found = [", ".join(_said(key, names[key], group[key]) for key in chosen if key in group) for group in groups]
    known: list[str] = []
    for label in (label or "others" for label in found):
        count = sum(other == label or other.startswith(f"{label} #") for other in known)
        known.append(f"{label} #{count + 1}" if count else label)  # classes of one name, of different modules
    return known


def _signatures(groups: Sequence[Settings], keys: Sequence[str]) -> set[tuple[object, ...]]:
    return {tuple(group.get(key, "absent") for key in keys) for group in groups}


def _said(key: str, name: str, value: Setting) -> str:
    is_class = isinstance(value, str) and _CLASS.fullmatch(value) is not None
    return shown(value) if key == METHOD or is_class else f"{name} {shown(value)}"


def _walk(value: Any, key: str) -> Iterator[tuple[str, Setting]]:
    if key == METHOD:
        yield from _callbacks(value if isinstance(value, list) else [] if value is None else [value])
    elif isinstance(value, Mapping) and "class_path" in value:
        yield key, str(value["class_path"])
        yield from _members(_arguments(value), key)
    elif isinstance(value, Mapping):
        if "." in key:  # not the groups of the command line: versions may differ in what they have
            yield key, ", ".join(map(str, value))
        yield from _members(value, key)
    elif isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
        yield key, " + ".join(_class_of(entry) or "entry" for entry in value)
        yield from _entries(value, key)
    else:
        yield key, value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _members(values: Mapping[Any, Any], key: str) -> Iterator[tuple[str, Setting]]:
    for name, value in values.items():
        yield from _walk(value, f"{key}.{name}" if key else str(name))


def _callbacks(stack: Sequence[Any]) -> Iterator[tuple[str, Setting]]:
    """The algorithm, then the arguments of its parts; Lightning's own callbacks come last in its name."""
    kept = [entry for entry in stack if _class_of(entry).rpartition(".")[2] not in OBSERVERS]
    classes = [_class_of(entry) for entry in kept]
    lightning = [name for name in classes if name.startswith(("lightning.", "pytorch_lightning."))]
    algorithms = [name for name in classes if name not in lightning] or [PLAIN]
    yield METHOD, " + ".join([*algorithms, *lightning])
    yield from _entries(kept, METHOD)
    for entry in (entry for entry in stack if isinstance(entry, Mapping)):
        name, arguments = _class_of(entry).rpartition(".")[2], _arguments(entry)
        for argument in (argument for argument in _MEASURING.get(name, ()) if argument in arguments):
            yield from _walk(arguments[argument], f"{METHOD}.{name}.{argument}")


def _entries(entries: Sequence[Any], key: str) -> Iterator[tuple[str, Setting]]:
    """The settings in the entries of a list; their classes are in the list's own value."""
    for name, entry in _numbered(entries).items():
        if _class_of(entry):
            yield from _members(_arguments(entry) if isinstance(entry, Mapping) else {}, f"{key}.{name}")
        else:
            yield from _walk(entry, f"{key}.{name}")


def _class_of(entry: Any) -> str:
    return str(entry.get("class_path", "")) if isinstance(entry, Mapping) else str(entry)


def _arguments(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {**(entry.get("init_args") or {}), **(entry.get("dict_kwargs") or {})}


def _numbered(entries: Sequence[Any]) -> dict[str, Any]:
    """The entries of a list by class, or by number where they are of none; a class's second is ``NAME 2``."""
    named: dict[str, Any] = {}
    for number, entry in enumerate(entries):
        name = _class_of(entry).rpartition(".")[2] if isinstance(entry, Mapping) else ""
        count = sum(known.partition(" ")[0] == name for known in named)
        named[f"{name} {count + 1}" if name and count else name or str(number)] = entry
    return named
