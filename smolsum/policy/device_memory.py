"""How much memory training may take here, and which limit says so.

Everything that can stop a process counts: available RAM, cgroups (containers, `systemd-run -p MemoryMax=…`, batch
systems), `ulimit -v` and `ulimit -d`, and the memory of a GPU. The variable SMOLSUM_MEMORY_GB replaces all of them. It,
like a budget, is for the whole process on a CPU, and for MLX's arrays alone on a GPU.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from smolsum.errors import UsageError

GB = 1e9
VARIABLE = "SMOLSUM_MEMORY_GB"
MARGIN = 0.05
"""share of a limit that stays free, for the system and for what else shares the limit"""
MACOS_SHARE = 0.75
"""of the RAM of a Mac, which does not say how much is available"""
WORKING_SET = "max_recommended_working_set_size"
"""key of MLX's `device_info` with Metal"""
UNLIMITED = 1 << 60
"""bytes; version 1 of cgroups gives a number as large as this where there is no limit"""


@dataclass(frozen=True)
class MemoryLimit:
    """The most bytes that something may hold: the whole process, or (on a CUDA device or Metal) MLX's arrays alone."""

    size: float
    source: str
    """which limit it is, in words"""
    of_arrays: bool = False
    blind: bool = False
    """whether it is the same whatever other processes hold, as on a Mac"""

    def for_arrays(self, process: float) -> float:
        """Return the bytes that are left for arrays, where `process` is what the process holds apart from them."""
        return self.size if self.of_arrays else self.size - process


def tightest_limit(
    environ: Mapping[str, str], *, root: Path = Path("/"), reserved: Callable[[], float] = lambda: 0.0
) -> MemoryLimit:
    """Return the limit that leaves the least room for arrays, or that of SMOLSUM_MEMORY_GB.

    `root` is where `proc` and `sys` are. `reserved` returns the bytes that workers on this machine take; it is called
    for limits that do not know of other processes. Raises UsageError where the variable is not a number above 0.
    """
    if (own := environ.get(VARIABLE, "").strip()) != "":
        return set_limit(_gigabytes(own), VARIABLE)
    held = outside_arrays(root)
    limits = [*_of_device(), *host_limits(root)]
    if any(limit.blind for limit in limits) and (taken := reserved()):
        limits = [_without(limit, taken) if limit.blind else limit for limit in limits]
    return min(limits, key=lambda limit: limit.for_arrays(held))


def _without(limit: MemoryLimit, taken: float) -> MemoryLimit:
    source = f"{limit.source}, less {taken / GB:.1f} GB of workers on this machine"
    return replace(limit, size=max(0.0, limit.size - taken), source=source)


def set_limit(size: float, source: str) -> MemoryLimit:
    """Return a limit of `size` bytes that the user has set: of the process on a CPU, of MLX's arrays on a GPU."""
    return MemoryLimit(size, source, of_arrays=not on_cpu())


def host_limits(root: Path = Path("/")) -> list[MemoryLimit]:
    """Return what this process may hold by each limit on the host; at least one."""
    status = _fields(root / "proc/self/status")
    held = status.get("VmRSS", 0)
    limits = [_of_ram(root, held), *_of_cgroups(root, held)]
    limits += [
        # a limit on addresses: those that are taken without any memory behind them are lost
        MemoryLimit((1 - MARGIN) * (soft - status.get(field, held) + held), source)
        for name, field, source in (("RLIMIT_AS", "VmSize", "ulimit -v"), ("RLIMIT_DATA", "VmData", "ulimit -d"))
        if 0 < (soft := _soft_limit(name)) < UNLIMITED
    ]
    return limits


@functools.cache
def outside_arrays(root: Path = Path("/")) -> float:
    """Return the bytes that this process held apart from MLX's arrays when it was first asked: libraries, tokenizers,
    data. Later it also holds what arrays have left, which the next ones take."""
    import mlx.core as mx

    held = _fields(root / "proc/self/status").get("VmRSS", 0) or _peak_resident()
    return float(max(0, held - mx.get_active_memory() - mx.get_cache_memory()))


def gpu_memory() -> int | None:
    """Return the bytes that MLX holds on the GPU that it computes on, in arrays or kept for the next ones; None on a
    CPU, where they are part of the process."""
    import mlx.core as mx

    return None if on_cpu() else int(mx.get_active_memory() + mx.get_cache_memory())


def metal_working_set() -> int | None:
    """Return the bytes that Metal recommends for arrays; None where MLX does not compute with Metal."""
    import mlx.core as mx

    size = None if on_cpu() else mx.device_info().get(WORKING_SET)
    return None if size is None else int(size)


def raise_wired_limit() -> None:
    """Keep all that Metal recommends resident in memory, as MLX otherwise wires nothing. Does nothing elsewhere.

    macOS 15 and later know the limit; the recommended working set is the highest that needs no change of the system.
    """
    import mlx.core as mx

    if mx.metal.is_available() and not on_cpu():
        mx.set_wired_limit(int(mx.device_info()[WORKING_SET]))


def on_cpu() -> bool:
    """Return whether MLX computes on the CPU."""
    import mlx.core as mx

    return bool(mx.default_device().type == mx.DeviceType.cpu)


def _gigabytes(text: str) -> float:
    try:
        size = float(text) * GB
    except ValueError:
        size = 0.0
    if not 0 < size < UNLIMITED:
        raise UsageError(f"{VARIABLE}={text!r} is not a number of gigabytes above 0", hint=f"export {VARIABLE}=8")
    return size


def _of_device() -> Iterator[MemoryLimit]:
    """Yield the limit of the GPU that MLX computes on, if any. The keys of `device_info` are in MLX's
    backend/metal/device_info.cpp and backend/cuda/device_info.cpp."""
    import mlx.core as mx

    if on_cpu():
        return
    info, taken = mx.device_info(), mx.get_active_memory() + mx.get_cache_memory()
    if "free_memory" in info:
        yield MemoryLimit((1 - MARGIN) * (float(info["free_memory"]) + taken), "free memory of the GPU", of_arrays=True)
    elif WORKING_SET in info:
        yield MemoryLimit(float(info[WORKING_SET]), "the working set that Metal recommends", of_arrays=True, blind=True)


def _of_ram(root: Path, held: float) -> MemoryLimit:
    memory = _fields(root / "proc/meminfo")
    if "MemAvailable" in memory:
        room = memory["MemAvailable"] - MARGIN * memory.get("MemTotal", memory["MemAvailable"])
        return MemoryLimit(max(0.0, held + room), "available RAM")
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return MemoryLimit(MACOS_SHARE * total, f"{MACOS_SHARE:.0%} of the RAM", blind=True)


def _of_cgroups(root: Path, held: float) -> Iterator[MemoryLimit]:
    """Yield the limit of every memory cgroup that this process is in (cgroups(7)): a parent's holds for its children
    together. What a cgroup uses beyond this process is lost, except for file pages, which the kernel takes back."""
    for folder, names in _cgroup_folders(root):
        limit = min((_number(folder / name) for name in names.limits), default=UNLIMITED)
        used = _number(folder / names.used)
        if limit >= UNLIMITED or used >= UNLIMITED:
            continue
        stat = _words(folder / "memory.stat")
        files = sum(stat.get(f"{names.prefix}{key}", 0) for key in ("active_file", "inactive_file"))
        room = limit - max(0, used - files)
        yield MemoryLimit((1 - MARGIN) * max(0, held + room), f"the memory limit of cgroup {folder}")


@dataclass(frozen=True)
class _CgroupFiles:
    """The names of a cgroup's files, which differ between the versions of cgroups."""

    limits: tuple[str, ...]
    used: str
    prefix: str
    """of the keys of memory.stat that count children too"""


_CGROUP1 = _CgroupFiles(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_")
_CGROUP2 = _CgroupFiles(("memory.max", "memory.high"), "memory.current", "")


def _cgroup_folders(root: Path) -> Iterator[tuple[Path, _CgroupFiles]]:
    """Yield the folders of this process's memory cgroup and its parents, as far up as they are visible."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        for mount, inside in _mounts(root, "cgroup" if controllers else "cgroup2"):
            own = PurePosixPath(path)
            # a container often sees only its own part of the hierarchy
            below = own.relative_to(inside) if own.is_relative_to(inside) else PurePosixPath()
            for part in (below, *below.parents):
                yield mount / part, (_CGROUP1 if controllers else _CGROUP2)


def _mounts(root: Path, kind: str) -> Iterator[tuple[Path, PurePosixPath]]:
    """Yield mount point, and the path inside the hierarchy that is mounted there, of cgroups with a memory controller
    (proc_pid_mountinfo(5))."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, (found, _, options) = before.split(), after.split(" ", 2)
        if found == kind and (kind == "cgroup2" or "memory" in options.split(",")):
            yield root / fields[4].lstrip("/"), PurePosixPath(fields[3])


def _soft_limit(name: str) -> int:
    import resource

    return resource.getrlimit(getattr(resource, name))[0]


def _peak_resident() -> int:
    """Return the most bytes that this process has held so far."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _number(file: Path) -> int:
    """Return the number in a cgroup's file; UNLIMITED where it is `max` or the file is missing."""
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].isdecimal() else UNLIMITED


def _words(file: Path) -> dict[str, int]:
    """Return the numbers of a file with a key and a number in each line."""
    return {key: int(value) for key, _, value in (line.partition(" ") for line in _lines(file)) if value.isdecimal()}


def _fields(file: Path) -> dict[str, int]:
    """Return the bytes of a file of /proc whose lines are like `VmRSS:   1024 kB`."""
    found = {}
    for line in _lines(file):
        key, _, value = line.partition(":")
        if value.endswith(" kB"):
            found[key] = int(value.split()[0]) * 1024
    return found


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()  # paths may be any bytes
    except OSError:
        return []
