"""The rate at which this machine reads memory, with all cores: the best of several passes over 1 GB."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from shapes import report

VALUES, PASSES = 1 << 28, 8


def main() -> None:
    """Add up a large array of float32, a part on each core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    values = np.ones(VALUES, np.float32)
    parts, seconds = np.array_split(values, cores), []
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(PASSES):
            start = time.perf_counter()
            list(pool.map(np.sum, parts))  # lets other threads run
            seconds.append(time.perf_counter() - start)
    report(rate=values.nbytes / min(seconds))


if __name__ == "__main__":
    main()
