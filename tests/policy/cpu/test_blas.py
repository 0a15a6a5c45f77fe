"""The BLAS that MLX is given, each seen from its own process."""

import ctypes.util
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes import python

from smolsum.policy.cpu import native

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="MLX has its own BLAS elsewhere")

PROBE = """
import ctypes, json, warnings
warnings.simplefilter("error")
from smolsum.policy.cpu import blas
import mlx.core as mx
import numpy as np
a, b = (np.random.default_rng(n).standard_normal((512, 512), dtype=np.float32) for n in (1, 2))
x, y = mx.array(a), mx.array(b)

class Place(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), *((name, ctypes.c_void_p) for name in ("base", "symbol", "address"))]

def file_of(name):
    place, everything = Place(), ctypes.CDLL(None)
    if not hasattr(everything, name):
        return ""
    everything.dladdr(ctypes.cast(getattr(everything, name), ctypes.c_void_p), ctypes.byref(place))
    return place.file.decode()

error = float(np.abs(np.array(x @ y) - a.astype(np.float64) @ b.astype(np.float64)).max())
print(json.dumps({"path": blas.preload(), "files": [file_of(name) for name in blas.GEMM], "error": error}))
"""


def probe(**variables: str) -> dict[str, Any]:
    """Which library was loaded, the files that have the functions which MLX calls for products, and an error of one."""
    environ = {key: value for key, value in os.environ.items() if key != "SMOLSUM_BLAS"}
    code, out, err = python("-c", PROBE, environ=environ, **variables)
    assert (code, err) == (0, "")
    return dict(json.loads(out))


def test_none_keeps_mlx_s_own() -> None:
    """Nothing is loaded, and products are right."""
    plain = probe(SMOLSUM_BLAS="none")
    assert plain["path"] == ""
    assert not [file for file in plain["files"] if "libsmolsum" in file or "openblas-scipy" in file]
    assert plain["error"] < 1e-3


def test_a_real_blas_is_found_and_used(tmp_path: Path) -> None:
    """On first use, with no BLAS in the cache: one is made or found, has MLX's products, and they are right."""
    if native.library() is not None:  # compiling it takes seconds
        (tmp_path / "smolsum").mkdir()
        shutil.copy(native.compiled(), tmp_path / "smolsum")
    found = probe(XDG_CACHE_HOME=str(tmp_path))
    assert Path(found["path"]).is_file()
    assert found["error"] < 1e-3
    first, *others = found["files"]  # products in float32 may go through our library for few rows
    assert first == found["path"] or Path(first).name.startswith("libsmolsum-")
    assert {str(Path(file).resolve()) for file in others} == {str(Path(found["path"]).resolve())}
    assert not list((tmp_path / "smolsum").glob("tmp*"))


@pytest.mark.parametrize(
    ("variable", "name"), [("SMOLSUM_BLAS", "missing.so"), ("SMOLSUM_BLAS", "text.so"), ("XDG_CACHE_HOME", "text.so")]
)
def test_a_library_or_cache_that_cannot_be_used_is_no_error(tmp_path: Path, variable: str, name: str) -> None:
    """A wrong SMOLSUM_BLAS leaves MLX's own; without a place for the copy, another library or MLX's own is used."""
    (tmp_path / "text.so").write_text("not a library")
    asked = probe(**{variable: str(tmp_path / name)})
    assert asked["error"] < 1e-3
    assert asked["path"] == "" or variable == "XDG_CACHE_HOME"


def test_the_user_s_choice_is_taken() -> None:
    """SMOLSUM_BLAS names the one library that is loaded."""
    name = ctypes.util.find_library("m")
    assert name
    assert probe(SMOLSUM_BLAS=name)["path"] == name
