"""A setting of the C library's memory allocator, for processes that the command line starts."""

import ctypes
import sys

_TRIM_THRESHOLD = -1  # the numbers of settings, from glibc's malloc.h
_MMAP_THRESHOLD = -3
_LARGEST_BLOCKS = (2**30, 2**25)  # bytes; older versions of glibc accept at most the second value
_KEPT = 2**29  # bytes


def keep_freed_memory() -> None:
    """Keep up to 512 MiB of freed memory in the process for the next training step, if the C library is glibc.

    A training step frees its gradients and activations, and the next one allocates as much again. By default glibc
    returns such large blocks to the system and gets new pages, with a page fault for each 4 KiB: a tenth of the time of
    a step of McMahan's CNN. Only the command line calls this; in other programs, lfl does not change the allocator.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        any(mallopt(_MMAP_THRESHOLD, size) for size in _LARGEST_BLOCKS)  # `any` stops at the first that is accepted
        mallopt(_TRIM_THRESHOLD, _KEPT)
