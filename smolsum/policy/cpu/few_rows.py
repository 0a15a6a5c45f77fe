"""Matrix products of few rows that read each weight once, on a Linux CPU.

Sampling multiplies one to 64 rows by each matrix of weights. A BLAS is made for more rows and takes about twice as long
at 8 to 16 of them. `few_rows.c` has these products under the name that MLX calls, and passes all
others on to the BLAS. It is compiled once on each machine, where there is a C compiler, and kept in the user's cache.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")
PARALLEL = "-fopenmp"
COMPILE_S = 60

_library: ctypes.CDLL | None = None


def load(blas: ctypes.CDLL) -> None:
    """Load the library with global visibility, compiled if it is not in the cache, and let it pass other products on to
    `blas`, which must not be globally visible yet. Nothing happens without a compiler, or where SMOLSUM_FEW_ROWS is
    `none`."""
    global _library
    sgemm = getattr(blas, "cblas_sgemm", None)
    if sgemm is None or os.environ.get("SMOLSUM_FEW_ROWS") == "none":
        return
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # a waiting thread leaves its core to MLX after microseconds
    with suppress(OSError, subprocess.SubprocessError):
        _library = ctypes.CDLL(str(_compiled()), ctypes.RTLD_GLOBAL)
        _library.few_rows_forward(ctypes.cast(sgemm, ctypes.c_void_p))
        _library.few_rows_threads(len(os.sched_getaffinity(0)))


def in_use() -> bool:
    """Return whether MLX multiplies few rows with this library."""
    return _library is not None


def _compiled() -> Path:
    """Return the library for this source and this processor, compiled if it is missing. Raises OSError without a
    compiler, SubprocessError where it fails."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smolsum"
    place = hashlib.sha256(SOURCE.read_bytes() + _processor().encode()).hexdigest()[:16]
    library = cache / f"libfew-rows-{place}.so"
    if library.exists():
        return library
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError("no C compiler")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        made = Path(work) / library.name
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(made)]
        try:
            subprocess.run([*command, PARALLEL], check=True, capture_output=True, timeout=COMPILE_S)
        except subprocess.CalledProcessError:  # without OpenMP
            subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_S)
        made.rename(library)
    return library


def _processor() -> str:
    """Return what decides which instructions a program compiled here has: a cache may be shared by machines."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {' '.join(sorted(found.split()))}"
