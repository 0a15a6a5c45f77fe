"""Memory for MLX on Linux CPU.

There MLX takes every array from the C library and gives it back at once. glibc returns large blocks to the kernel,
which clears each page again for the next array: that costs more than the arithmetic of an elementwise operation.
"""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
"""options of mallopt(3)"""
KEEP_ALL, PAD = -1, 64 << 20
"""bytes: free memory kept at the end of the heap, without limit, and memory taken from the kernel at a time"""


def keep_freed_memory() -> bool:
    """Let the C library keep what is freed for the next array; whether it could be told so (only glibc can)."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # one heap for all threads: the arrays of MLX's streams would else be mappings of their own, unmapped when freed
    options = ((MMAP_MAX, 0), (ARENA_MAX, 1), (TRIM_THRESHOLD, KEEP_ALL), (TOP_PAD, PAD))
    done = [mallopt(option, value) for option, value in options]
    return all(done)
