"""Products of few rows: the right values, each row by itself, whatever is multiplied with it; all others unchanged."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from smolsum.policy.cpu import few_rows

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="MLX has its own BLAS elsewhere")

Array = NDArray[np.float32]
ROW_MAJOR, AS_IS, TRANSPOSED = 101, 111, 112
SAMPLE = """
import json, sys, warnings
warnings.simplefilter("error")
import smolsum.policy
from smolsum.policy.cpu import few_rows
from smolsum.policy.load import load_policy
from smolsum.policy.sampling import generate
policy = load_policy("builtin:tiny")
prompts = [[5, 9, 33, 4, 60], [12, 8, 41]]
rows = generate(policy.model, prompts, [[1, 2, 3, 4], [5, 6]], eos_ids=frozenset(), temperature=1.0, max_new_tokens=40)
ids = [one.token_ids for row in rows for one in row]
logps = [one.logprobs for row in rows for one in row]
print(json.dumps({"in_use": few_rows.in_use(), "ids": ids, "logps": logps}))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The library by itself: a copy, as this process multiplies with the one of the cache. Products that it passes on
    fail."""
    if not any(map(shutil.which, few_rows.COMPILERS)):
        pytest.skip("no C compiler")
    return ctypes.CDLL(shutil.copy(few_rows._compiled(), tmp_path_factory.mktemp("library") / "libfew.so"))


def product(
    library: ctypes.CDLL, x: Array, w: Array, *, alpha: float = 1.0, beta: float = 0.0, y: Array | None = None
) -> Array:
    """alpha x W^T + beta y, called as MLX calls it; arrays may be slices of wider ones."""
    (rows, depth), (width, _) = x.shape, w.shape
    out = np.full((rows, width), np.nan, np.float32) if y is None else y.copy()
    pointers = [array.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) for array in (x, w, out)]
    a, b, c = pointers
    numbers = ctypes.c_float(alpha), ctypes.c_float(beta)
    library.cblas_sgemm(
        ROW_MAJOR, AS_IS, TRANSPOSED, rows, width, depth, numbers[0], a, x.strides[0] // 4, b, w.strides[0] // 4,
        numbers[1], c, width,
    )  # fmt: skip
    return out


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@given(st.integers(1, 64), st.integers(1, 70), st.integers(1, 300), st.booleans(), st.sampled_from([0.0, 1.0, 0.5]))
@settings(max_examples=150, deadline=None)
def test_any_product(library: ctypes.CDLL, rows: int, width: int, depth: int, sliced: bool, beta: float) -> None:
    """Within rounding of float64's, also of slices, and added to what is there."""
    depth = max(depth, few_rows_least(rows, width))
    x, w = (drawn(n, depth + 7 * sliced, seed=n)[:, :depth] for n in (rows, width))
    y = drawn(rows, width, seed=9)
    found = product(library, x, w, alpha=2.0, beta=beta, y=y if beta else None)
    exact = 2.0 * (x.astype(np.float64) @ w.astype(np.float64).T) + (beta * y if beta else 0.0)
    np.testing.assert_allclose(found, exact, atol=1e-5 * depth)


def few_rows_least(rows: int, width: int) -> int:
    """The depth from which the library multiplies itself: 2^14 products."""
    return -(-(1 << 14) // (rows * width))


@pytest.mark.parametrize(("width", "depth"), [(61, 300), (900, 1000)])
def test_a_row_does_not_depend_on_the_others(library: ctypes.CDLL, width: int, depth: int) -> None:
    """Bit for bit: alone or with 63 more, with any number of threads; so a rollout does not depend on its batch."""
    x, w = drawn(64, depth), drawn(width, depth, seed=1)
    try:
        library.few_rows_threads(1)
        whole = product(library, x, w)
        for threads in (1, 2, 5):
            library.few_rows_threads(threads)
            for rows in (1, 2, 7, 8, 9, 16, 17, 32, 33, 63, 64):
                assert (product(library, x[:rows], w) == whole[:rows]).all(), (threads, rows)
    finally:
        library.few_rows_threads(1)


def test_other_products_are_passed_on(library: ctypes.CDLL) -> None:
    """More rows, few operations and another layout reach the BLAS with the same arguments."""
    calls: list[tuple[Any, ...]] = []
    kind = ctypes.CFUNCTYPE(
        None, *[ctypes.c_int] * 6, ctypes.c_float, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int,
        ctypes.c_float, ctypes.c_void_p, ctypes.c_int,
    )  # fmt: skip
    note = kind(lambda *given: calls.append(given[:7]))
    library.few_rows_forward(note)
    for rows, width, depth in ((65, 100, 100), (2, 10, 10)):
        product(library, drawn(rows, depth), drawn(width, depth))
        assert calls.pop() == (ROW_MAJOR, AS_IS, TRANSPOSED, rows, width, depth, 1.0)
    assert calls == []


def sampled(**variables: str) -> dict[str, Any]:
    """What a process samples."""
    environment = {key: value for key, value in os.environ.items() if key != "SMOLSUM_FEW_ROWS"} | variables
    run = subprocess.run([sys.executable, "-c", SAMPLE], capture_output=True, text=True, env=environment, check=True)
    assert run.stderr == ""
    return dict(json.loads(run.stdout))


@pytest.mark.slow
def test_sampling_differs_by_rounding_alone(tmp_path: Path, library: ctypes.CDLL) -> None:
    """The same tokens as with the BLAS, log-probs within 1e-4; from an empty cache, and a cache that cannot be used."""
    theirs = sampled(SMOLSUM_FEW_ROWS="none")
    ours = sampled(XDG_CACHE_HOME=str(tmp_path))
    assert (theirs["in_use"], ours["in_use"]) == (False, True)
    assert ours["ids"] == theirs["ids"]
    np.testing.assert_allclose(ours["logps"], theirs["logps"], atol=1e-4)
    (kept,) = (tmp_path / "smolsum").glob("libfew-rows-*")
    kept.write_bytes(b"not a library")
    assert sampled(XDG_CACHE_HOME=str(tmp_path))["ids"] == theirs["ids"]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", [None, "exit 1", "sleep 0; exit 0"])
def test_without_a_compiler_the_blas_does_it(tmp_path: Path, compiler: str | None) -> None:
    """None in the path, one that fails, and one that writes nothing: no word, and the BLAS multiplies."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in few_rows.COMPILERS if compiler else ():
        (programs / name).write_text(f"#!/bin/sh\n{compiler}\n")
        (programs / name).chmod(0o755)
    found = sampled(PATH=str(programs), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert not found["in_use"]
    assert len(found["ids"]) == 6
