"""BatchNorm on a single value per channel, where torch raises: there is no variance."""

from typing import Any

from torch import nn

_MARK = "_has_single_values"


def use_running_statistics_of_single_values(module: nn.Module) -> None:
    """Let the BatchNorms of a module use their running statistics wherever a channel has one value only.

    One example of one value a channel, as the last batch of a small client may be. Feature maps of one image have many
    values, and train as in torch. May be called again.
    """
    for norm in module.modules():
        is_new = isinstance(norm, nn.modules.batchnorm._BatchNorm) and _before not in norm._forward_pre_hooks.values()
        if is_new and norm.track_running_stats:
            norm.register_forward_pre_hook(_before)
            norm.register_forward_hook(_after, always_call=True)


def _before(norm: nn.Module, inputs: tuple[Any, ...]) -> None:
    if norm.training and inputs and inputs[0].dim() > 1 and inputs[0].numel() == inputs[0].shape[1]:
        norm.training = False
        vars(norm)[_MARK] = True


def _after(norm: nn.Module, _inputs: Any, _output: Any) -> None:
    if vars(norm).pop(_MARK, False):
        norm.training = True
