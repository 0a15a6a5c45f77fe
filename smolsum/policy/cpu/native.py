"""The functions in C that a Linux CPU runs: products of few rows, decoding, gradients, optimizer steps.

The sources next to this file are compiled once on each machine that has a C compiler, into one library that is kept in
the user's cache. Without it MLX does the same work, more slowly. `few_rows.c` has `cblas_sgemm` for few rows under the
name that MLX calls, and passes all other products on to the BLAS.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC")  # a root that sets errno is no vector's
PARALLEL = "-fopenmp"
COMPILE_S = 60

_library: ctypes.CDLL | None = None
_reason = ""
"""why it is not in use, where it was tried"""


def load(blas: ctypes.CDLL) -> None:
    """Load the library with global visibility, compiled if it is not in the cache, and let it pass other products on to
    `blas`, which must not be globally visible yet. Nothing happens without a compiler, or where SMOLSUM_NATIVE is
    `none`."""
    global _library, _reason
    sgemm = getattr(blas, "cblas_sgemm", None)
    if sgemm is None or os.environ.get("SMOLSUM_NATIVE") == "none":
        return
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # a waiting thread leaves its core to MLX after microseconds
    try:
        _library = _opened()
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        _reason = f"{error.cmd[0]} failed ({said[-1] if said else f'exit code {error.returncode}'})"
    except (OSError, subprocess.SubprocessError) as error:
        _reason = str(error)
    else:
        _library.products_forward(ctypes.cast(sgemm, ctypes.c_void_p))
        _library.few_rows_threads(threads())


def library() -> ctypes.CDLL | None:
    """Return the library, None where it is not in use."""
    return _library


def reason() -> str:
    """Return why the library is not in use, empty where it is or was not tried."""
    return _reason


def threads() -> int:
    """Return the number of cores that this process may use, or `OMP_NUM_THREADS` if that is less."""
    cores, wanted = len(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(wanted)) if wanted.isdecimal() and int(wanted) else cores


def cache_folder() -> Path:
    """Return the folder of what is made once on a machine. Raises OSError for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smolsum"
    except RuntimeError as error:
        raise FileNotFoundError(str(error)) from error


def compiled() -> Path:
    """Return the library for these sources and this processor, compiled if it is missing. Raises OSError without a
    compiler, SubprocessError where it fails."""
    files = sorted(Path(__file__).parent.glob("*.[ch]"))
    cache = cache_folder()
    content = b"".join(file.read_bytes() for file in files) + repr((FLAGS, PARALLEL)).encode()
    place = hashlib.sha256(content + _processor().encode()).hexdigest()[:16]
    path = cache / f"libsmolsum-{place}.so"
    if path.exists():
        return path
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError("there is no C compiler")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        made = Path(work) / path.name
        command = [compiler, *FLAGS, *(str(file) for file in files if file.suffix == ".c"), "-o", str(made), "-lm"]
        try:
            subprocess.run([*command, PARALLEL], check=True, capture_output=True, timeout=COMPILE_S)
        except subprocess.CalledProcessError:  # without OpenMP
            subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_S)
        made.rename(path)  # in one step, as another process may look for it or compile it too
    return path


def _opened() -> ctypes.CDLL:
    """Load the library; one that is damaged is compiled again."""
    path = compiled()
    try:
        return ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except OSError:
        path.unlink(missing_ok=True)
        return ctypes.CDLL(str(compiled()), ctypes.RTLD_GLOBAL)


def _processor() -> str:
    """Return what decides which instructions a program compiled here has: a cache may be shared by machines."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {' '.join(sorted(found.split()))}"
