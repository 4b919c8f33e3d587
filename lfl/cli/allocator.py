"""The memory allocator of the command line's own process."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of glibc's mallopt
_LARGEST_BLOCKS = (2**30, 2**25)  # bytes; older versions of glibc take no more than the second
_KEPT = 2**29


def keep_freed_memory() -> None:
    """Keep up to 512 MiB of freed memory in the process for the next training step, if the C library is glibc.

    A step frees gradients and activations and asks for as much again. By default glibc returns blocks of this size to
    the system and gets zeroed pages back, with a page fault for each 4 KiB: a tenth of the time of a step of McMahan's
    CNN. Only the command line calls this: in a user's own program the allocator is not lfl's to set.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        any(mallopt(_MMAP_THRESHOLD, size) for size in _LARGEST_BLOCKS)  # the first that is accepted
        mallopt(_TRIM_THRESHOLD, _KEPT)
