"""What the training process takes of its machine, as metrics of a step: processor, memory, GPU memory.

They are for people only: nothing is computed from them, and a resumed run has its own.
"""

import os
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from smolsum.policy.device_memory import GB, gpu_memory

PS_S = 2.0
"""Seconds that ps may take, on systems without /proc."""


class SystemMeter:
    """Measures this process from one step to the next.

    system/cpu_percent      processor time of all its threads, in percent of all cores that it may use (psutil's
                            `cpu_percent`, divided by the cores as Weights & Biases does)
    system/memory_rss_gb    memory that is resident in RAM, in 10^9 bytes; on a Mac with MLX's arrays
    system/gpu_memory_gb    memory of the GPU that MLX holds, for arrays and for the next ones, where it computes on one
    """

    def __init__(self, root: Path = Path("/")) -> None:
        """`root` is where `proc` is."""
        self._root = root
        self._cores = len(os.sched_getaffinity(0)) if "sched_getaffinity" in dir(os) else os.cpu_count() or 1
        self.start()

    def start(self) -> None:
        """Begin a step."""
        self._began, self._used = time.perf_counter(), time.process_time()

    def metrics(self) -> Mapping[str, float]:
        """Return the processor's share since the start, and the memory now; what is not known is missing."""
        took, used = time.perf_counter() - self._began, time.process_time() - self._used
        found = {"system/cpu_percent": 100 * used / (took * self._cores)} if took > 0 else {}
        sizes = {"system/memory_rss_gb": resident_memory(self._root), "system/gpu_memory_gb": gpu_memory()}
        return found | {name: size / GB for name, size in sizes.items() if size is not None}


def resident_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of this process that are in RAM: of /proc (proc_pid_statm(5)), else of ps; None if unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int((root / "proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        return int(subprocess.run(command, capture_output=True, timeout=PS_S, check=True).stdout) * 1024
    return None
