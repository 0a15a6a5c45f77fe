"""What makes MLX fast on a Linux CPU: a real BLAS, memory that stays, one stream a core, vectorised kernels.

`prepare` has to run before MLX is imported; importing `smolsum.policy` calls it.
"""

from __future__ import annotations

import ctypes
import os
import sys

from smolsum.policy.cpu.blas import preload

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
"""options of mallopt(3)"""
KEEP_ALL, PAD = -1, 64 << 20
"""bytes: free memory kept at the end of the heap, without limit, and memory taken from the kernel at a time"""


def prepare() -> None:
    """Load a BLAS and set up memory and evaluation order for this process."""
    preload()
    keep_freed_memory()
    # evaluate breadth-first, so that graphs on different streams are under way at the same time
    os.environ.setdefault("MLX_BFS_MAX_WIDTH", "10000")


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for the next array; returns whether it can (glibc alone does).

    MLX takes every CPU array from the C library and gives it back at once. glibc returns large blocks to the kernel,
    which clears each page again for the next array: that costs more than the arithmetic of an elementwise operation.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # one heap for all threads: the arrays of MLX's streams would else be mappings of their own, unmapped when freed
    options = ((MMAP_MAX, 0), (ARENA_MAX, 1), (TRIM_THRESHOLD, KEEP_ALL), (TOP_PAD, PAD))
    done = [mallopt(option, value) for option, value in options]
    return all(done)
