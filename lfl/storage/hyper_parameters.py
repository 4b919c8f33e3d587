"""Hyper-parameters of modules and data modules, as Lightning's ``save_hyperparameters`` keeps them."""

from __future__ import annotations

from typing import Any

import numpy as np
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningDataModule, LightningModule

from lfl.storage.plain import is_loadable


def saved_hyper_parameters(*owners: LightningModule | LightningDataModule) -> dict[str, Any]:
    """The entries of a checkpoint from which ``load_from_checkpoint`` builds a module without arguments.

    Values that ``torch.load(weights_only=True)`` does not read are left out, with a warning: they must be given to
    ``load_from_checkpoint``.

    Args:
        owners: module and data module.
    """
    entries: dict[str, Any] = {}
    for owner in owners:
        # Not `hparams`, which makes the attribute where it is missing.
        values = {name: _plain(value) for name, value in getattr(owner, "_hparams", {}).items()}
        if not values:
            continue
        left_out = [name for name, value in values.items() if not is_loadable(value)]
        if left_out:
            rank_zero_warn(
                f"Checkpoints leave out the hyper-parameter(s) {', '.join(left_out)} of {type(owner).__name__}, which "
                "are not plain values: give them to `load_from_checkpoint`, or ignore them in `save_hyperparameters`."
            )
        entries[owner.CHECKPOINT_HYPER_PARAMS_KEY] = {n: v for n, v in values.items() if n not in left_out}
        if hasattr(owner, "_hparams_name"):
            entries[owner.CHECKPOINT_HYPER_PARAMS_NAME] = owner._hparams_name
    return entries


def _plain(value: Any) -> Any:
    """A value without Lightning's and numpy's own types, which are read back as Python's."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return type(value)(_plain(item) for item in value) if type(value) in (list, tuple) else value
