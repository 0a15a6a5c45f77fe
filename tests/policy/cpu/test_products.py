"""Products with factors in bfloat16: the exact products of rounded factors, however these lie in memory."""

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.models import NEEDS_C

from smolsum.policy.cpu import native
from smolsum.policy.cpu.gradient import why_no_bfloat16

pytestmark = [NEEDS_C, pytest.mark.skipif(bool(why_no_bfloat16()), reason=why_no_bfloat16())]

Array = NDArray[np.float32]
ROW_MAJOR, AS_IS, TRANSPOSED = 101, 111, 112
GAP = 5
"""values between two rows that belong to no factor"""


def in_bfloat16(values: Array) -> NDArray[np.float64]:
    """Rounded to the nearest, to the even one of two."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))
    return (rounded.astype(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def stored(values: Array, transposed: bool) -> tuple[Array, int]:
    """The values as rows or columns of a wider array that holds NaN elsewhere, and its width."""
    laid = values.T if transposed else values
    wide = np.full((len(laid), laid.shape[1] + GAP), np.nan, np.float32)
    wide[:, :-GAP] = laid
    return wide, wide.shape[1]


def product(a: Array, b: Array, a_transposed: bool, b_transposed: bool, beta: float, before: Array) -> Array:
    """A B + beta before, called as an update calls it."""
    library: Any = native.library()
    (rows, depth), columns = a.shape, b.shape[1]
    (first, lda), (second, ldb) = stored(a, a_transposed), stored(b, b_transposed)
    out, ldc = stored(before, False)
    x, y, z = (array.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) for array in (first, second, out))
    library.products_bfloat16(
        ROW_MAJOR, TRANSPOSED if a_transposed else AS_IS, TRANSPOSED if b_transposed else AS_IS, rows, columns, depth,
        ctypes.c_float(1.0), x, lda, y, ldb, ctypes.c_float(beta), z, ldc,
    )  # fmt: skip
    assert np.isnan(out[:, -GAP:]).all()  # nothing is written beside the product
    return out[:, :-GAP]


def drawn(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@given(st.integers(16, 210), st.integers(16, 130), st.integers(1, 1700), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_product(rows: int, columns: int, depth: int, a_lies: bool, b_lies: bool, adds: bool) -> None:
    """Rows, columns and depths that fill no tile or several parts; exact but for the sum's own rounding."""
    depth = max(depth, (1 << 18) // (rows * columns) + 1)  # less goes to the BLAS
    a, b, before = drawn(rows, depth, seed=1), drawn(depth, columns, seed=2), drawn(rows, columns, seed=3)
    found = product(a, b, a_lies, b_lies, float(adds), before if adds else np.full_like(before, np.nan))
    exact = in_bfloat16(a) @ in_bfloat16(b) + (before if adds else 0)
    np.testing.assert_allclose(found, exact, atol=2e-6 * depth)
    assert np.abs(found - a.astype(np.float64) @ b - (before if adds else 0)).max() > 1e-4  # rounded they are


def test_many_columns_and_few_values() -> None:
    """More columns than are packed together; products that do not pay, or of few rows, are the BLAS's."""
    a, b = drawn(17, 33, seed=1), drawn(33, 5000, seed=2)
    np.testing.assert_allclose(product(a, b, False, True, 0, np.empty((17, 5000), np.float32)),
                               in_bfloat16(a) @ in_bfloat16(b), atol=1e-4)  # fmt: skip
    for rows, columns in ((17, 20), (8, 5000)):
        found = product(a[:rows], b[:, :columns], False, False, 0, np.empty((rows, columns), np.float32))
        np.testing.assert_allclose(found, a[:rows].astype(np.float64) @ b[:, :columns], atol=1e-5)


def test_an_element_depends_on_its_row_and_column_alone() -> None:
    """To the bit, wherever it is."""
    a, b = drawn(200, 900, seed=1), drawn(900, 150, seed=2)
    whole = product(a, b, False, True, 0, np.empty((200, 150), np.float32))
    part = product(a[37:90].copy(), b[:, 61:99].copy(), False, True, 0, np.empty((53, 38), np.float32))
    assert (part == whole[37:90, 61:99]).all()
