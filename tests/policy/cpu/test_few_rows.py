"""Products of few rows: the right values, each row by itself, whatever is multiplied with it; all others unchanged."""

import ctypes
import shutil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.models import NEEDS_C

from smolsum.policy.cpu import native

pytestmark = NEEDS_C

Array = NDArray[np.float32]
ROW_MAJOR, AS_IS, TRANSPOSED = 101, 111, 112


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The library by itself: a copy, as this process multiplies with the one of the cache. Products that it passes on
    fail."""
    return ctypes.CDLL(shutil.copy(native.compiled(), tmp_path_factory.mktemp("library") / "libfew.so"))


def product(
    library: ctypes.CDLL, x: Array, w: Array, *, alpha: float = 1.0, beta: float = 0.0, y: Array | None = None
) -> Array:
    """alpha x W^T + beta y, called as MLX calls it; arrays may be slices of wider ones."""
    (rows, depth), (width, _) = x.shape, w.shape
    out = np.full((rows, width), np.nan, np.float32) if y is None else y.copy()
    a, b, c = (array.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) for array in (x, w, out))
    library.cblas_sgemm(
        ROW_MAJOR, AS_IS, TRANSPOSED, rows, width, depth,
        ctypes.c_float(alpha), a, x.strides[0] // 4, b, w.strides[0] // 4, ctypes.c_float(beta), c, width,
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
    library.products_forward(note)
    for rows, width, depth in ((65, 100, 100), (2, 10, 10)):
        product(library, drawn(rows, depth), drawn(width, depth))
        assert calls.pop() == (ROW_MAJOR, AS_IS, TRANSPOSED, rows, width, depth, 1.0)
    assert calls == []
