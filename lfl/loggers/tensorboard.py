"""A logger for TensorBoard that writes into the run's own folder."""

from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger as LightningTensorBoardLogger


class RunTensorBoardLogger(LightningTensorBoardLogger):
    """Lightning's logger for TensorBoard, with the run's folder as its default.

    Args:
        save_dir: folder; by default ``tensorboard`` in the run's folder.
        name: folder in ``save_dir``, as Lightning has it.
        version: folder in that; by default ``version_0``, ``version_1``, ...
        **kwargs: arguments of Lightning's logger and of torch's ``SummaryWriter``, such as ``log_graph``.
    """

    def __init__(
        self,
        save_dir: str | Path | None = None,
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        self._is_in_run = save_dir is None
        place: tuple[Any, ...] = ("runs", "", "tensorboard") if save_dir is None else (save_dir, name, version)
        super().__init__(*place, **kwargs)

    def use_folder(self, folder: Path) -> None:
        """Write into the folder of a new run, unless ``save_dir`` says where."""
        if self._is_in_run:
            self._root_dir = str(folder)
            self._experiment = None
            self.hparams = {}
