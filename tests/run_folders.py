"""Run folders as ``lfl fit`` leaves them, with numbers of one's choice."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

PROXIMAL = {"class_path": "lfl.callbacks.Proximal", "init_args": {"mu": 0.1}}


def config_of(
    seed: int = 0, lr: float = 0.1, callbacks: list[Any] | None = None, max_rounds: int = 4
) -> dict[str, Any]:
    """A ``config.yaml``, in its shape."""
    return {
        "seed_everything": seed,
        "trainer": {
            "max_rounds": max_rounds,
            "callbacks": callbacks,
            "default_root_dir": f"runs/{seed}",
            "system": None,
        },
        "data": {"class_path": "lfl.data.FederatedDataModule", "init_args": {"num_clients": 20, "seed": 0}},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": lr, "nesterov": False}},
        "ckpt_path": None,
    }


def make_run(
    path: Path,
    val_acc: Sequence[float | None] = (0.1, None, 0.5, 0.4),
    config: Mapping[str, Any] | None = None,
    megabytes: float = 1.0,
) -> Path:
    """A run's folder: ``val_acc`` by round (None: not evaluated), ``megabytes`` up in each, and twice as many down.

    A round takes two simulated seconds, and half a real one, of which 0.3 for training.
    """
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(dict(config_of() if config is None else config), sort_keys=False))
    size = 1e6 * megabytes
    names = ["round", "train/loss", "comm/total_up_bytes", "comm/total_down_bytes", "comm/up_bytes/update"]
    names += ["comm/down_bytes/model", "sim/time", "val_acc"]
    rows = [
        [n, 1 / n, size * n, 2 * size * n, size, 2 * size, 2.0 * n, "" if accuracy is None else accuracy]
        for n, accuracy in enumerate(val_acc, 1)
    ]
    _write(path / "metrics.csv", names, rows)
    _write(path / "timing.csv", ["round", "time/train_s", "time/round_s"], [[n[0], 0.3, 0.5] for n in rows])
    return path


def make_comparison(root: Path) -> Path:
    """FedAvg and FedProx, two seeds each: final accuracies 0.4 and 0.6, and 0.8 and 0.9."""
    for seed, accuracy in enumerate((0.4, 0.6)):
        make_run(root / "fedavg" / f"run_{seed:03d}", (0.1, None, 0.5, accuracy), config_of(seed))
    for seed, accuracy in enumerate((0.8, 0.9)):
        config = config_of(seed, callbacks=[PROXIMAL])
        make_run(root / "fedprox" / f"run_{seed:03d}", (0.2, None, 0.7, accuracy), config, megabytes=2.0)
    return root


def _write(path: Path, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([names, *rows])
