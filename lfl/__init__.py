"""Federated learning on PyTorch Lightning and Fabric."""

from typing import TYPE_CHECKING, Any

from lfl.version import __version__

if TYPE_CHECKING:
    from lfl.trainer import FederatedTrainer

__all__ = ["FederatedTrainer", "__version__"]


def __getattr__(name: str) -> Any:
    """The trainer, imported when it is asked for: that takes seconds, which ``lfl --help`` need not wait for."""
    if name == "FederatedTrainer":
        from lfl.trainer import FederatedTrainer

        return FederatedTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
