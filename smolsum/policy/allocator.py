"""Memory for MLX on Linux CPU.

There MLX takes every array from the C library and gives it back at once. glibc returns large blocks to the kernel,
which clears each page again for the next array: that costs more than the arithmetic of an elementwise operation.
"""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""options of mallopt(3)"""
MOST_TOP, PAD, MOST_MMAP = 2**31 - 1, 64 << 20, 32 << 20
"""bytes: free memory kept at the end of the heap, memory taken from the kernel at a time, and the size from which a
block may be a mapping of its own; the first and the last are the largest values that glibc takes"""


def keep_freed_memory() -> bool:
    """Let the C library keep what is freed for the next array; whether it could be told so (only glibc can)."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = ((MMAP_THRESHOLD, MOST_MMAP), (TRIM_THRESHOLD, MOST_TOP), (TOP_PAD, PAD))
    done = [mallopt(option, value) for option, value in options]
    return all(done)
