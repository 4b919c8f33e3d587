"""Ways in which Python code learns values of tensors, which a recording of its operations would take for constants."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# They copy values out of torch, or compare them, without an operation that a tracer would refuse. (It refuses `item`,
# and with it `bool(x)`, `float(x)` and `if x:`.)
_ESCAPES = {
    Tensor.numpy: "numpy",
    Tensor.__array__: "numpy",
    Tensor.tolist: "tolist",
    Tensor.equal: "equal",
    torch.equal: "equal",
    Tensor.allclose: "allclose",
    torch.allclose: "allclose",
}
_MASKS = (torch.bool, torch.uint8)


@contextmanager
def out_of_reach() -> Iterator[None]:
    """Say that the values of tensors cannot be looked at, as under torch's own tracers: to all but torch itself.

    Code that would look at them to save work, such as at a mask that masks nothing, then does that work.
    """
    jit: Any = torch.jit
    own = jit.is_tracing

    def is_tracing() -> bool:
        caller: str = sys._getframe(1).f_globals.get("__name__", "")
        return bool(own()) or caller.partition(".")[0] != "torch"

    jit.is_tracing = is_tracing
    try:
        yield
    finally:
        jit.is_tracing = own


class ValueReads:
    """Context that notes by which functions values of tensors are read, or sizes made that follow from values.

    Attributes:
        found: names of the functions.
    """

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._modes: tuple[Any, ...] = (_Functions(self.found), _Operations(self.found))

    def __enter__(self) -> Self:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


class _Functions(TorchFunctionMode):
    def __init__(self, found: set[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ESCAPES:
            self._found.add(_ESCAPES[func])
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, found: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.dynamic_output_shape in func.tags and (
            func is not torch.ops.aten.index.Tensor or _has_mask(args[1])
        ):
            self._found.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _has_mask(indices: Any) -> bool:
    return any(isinstance(index, Tensor) and index.dtype in _MASKS for index in tree_leaves(indices))
