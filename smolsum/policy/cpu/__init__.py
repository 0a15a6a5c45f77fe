"""What makes MLX fast on a Linux CPU: a real BLAS, memory that is kept, one stream for each core.
`policy/fast_math.py` has the vectorised functions.

`prepare_cpu` must run before MLX is imported; importing `smolsum.policy` calls it.
"""

import ctypes
import os
import sys

from smolsum.policy.cpu.blas import preload

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
"""options of mallopt(3)"""
KEEP_ALL, PAD = -1, 64 << 20
"""bytes: free memory kept at the end of the heap, without limit, and memory taken from the kernel at a time"""


def prepare_cpu() -> None:
    """Load a fast BLAS for MLX and set up memory and evaluation order for this process. Warns where MLX was imported
    before, on a Linux CPU: it then keeps its slow BLAS."""
    preload()
    keep_freed_memory()
    # evaluate breadth-first, so that graphs on different streams run at the same time
    os.environ.setdefault("MLX_BFS_MAX_WIDTH", "10000")


def keep_freed_memory() -> bool:
    """Make the C library keep freed memory for the next array; returns whether it can (only glibc can).

    MLX takes every CPU array from the C library and frees it at once. glibc returns large blocks to the kernel, which
    clears each page again for the next array: that costs more than the arithmetic of an elementwise operation.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # one heap for all threads: otherwise the arrays of MLX's streams are separate mappings, unmapped when freed
    options = ((MMAP_MAX, 0), (ARENA_MAX, 1), (TRIM_THRESHOLD, KEEP_ALL), (TOP_PAD, PAD))
    done = [mallopt(option, value) for option, value in options]
    return all(done)
