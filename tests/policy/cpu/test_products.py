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


def nearest(values: Array) -> Array:
    """In bfloat16: the nearest, and the even one of two."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))
    return (rounded.astype(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def drawn_up_or_down(weights: Array) -> Array:
    """In bfloat16: one of the two neighbours, by a draw that the weight's own bits make."""
    bits = weights.view(np.uint32).astype(np.uint64)
    draw = (bits * 0x9E3779B1 & 0xFFFFFFFF) >> np.uint64(16)
    return ((bits + draw).astype(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def stored(values: Array, transposed: bool) -> tuple[Array, int]:
    """The values as rows or columns of a wider array that holds NaN elsewhere, and its width."""
    laid = values.T if transposed else values
    wide = np.full((len(laid), laid.shape[1] + GAP), np.nan, np.float32)
    wide[:, :-GAP] = laid
    return wide, wide.shape[1]


def product(
    a: Array, b: Array, a_transposed: bool, b_transposed: bool, beta: float, before: Array, of: str = "rows"
) -> Array:
    """A B + beta before, called as an update calls it; `of`: what B has, `rows` or `weights`."""
    library: Any = native.library()
    (rows, depth), columns = a.shape, b.shape[1]
    (first, lda), (second, ldb) = stored(a, a_transposed), stored(b, b_transposed)
    out, ldc = stored(before, False)
    x, y, z = (array.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) for array in (first, second, out))
    getattr(library, f"products_bfloat16_{of}")(
        ROW_MAJOR, TRANSPOSED if a_transposed else AS_IS, TRANSPOSED if b_transposed else AS_IS, rows, columns, depth,
        ctypes.c_float(1.0), x, lda, y, ldb, ctypes.c_float(beta), z, ldc,
    )  # fmt: skip
    assert np.isnan(out[:, -GAP:]).all()  # nothing is written beside the product
    return out[:, :-GAP]


def drawn(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@given(
    st.integers(1, 210), st.integers(1, 130), st.integers(1, 1700), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from(["rows", "weights"]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_product(rows: int, columns: int, depth: int, a_lies: bool, b_lies: bool, adds: bool, of: str) -> None:
    """Rows, columns and depths that fill no tile or several parts; exact but for the sum's own rounding."""
    a, b, before = drawn(rows, depth, seed=1), drawn(depth, columns, seed=2), drawn(rows, columns, seed=3)
    found = product(a, b, a_lies, b_lies, float(adds), before if adds else np.full_like(before, np.nan), of)
    factors = nearest(a).astype(np.float64), (nearest if of == "rows" else drawn_up_or_down)(b).astype(np.float64)
    np.testing.assert_allclose(found, factors[0] @ factors[1] + (before if adds else 0), atol=2e-6 * depth)


def test_many_columns() -> None:
    """More of them than are packed together."""
    a, b = drawn(17, 33, seed=1), drawn(33, 5000, seed=2)
    exact = nearest(a).astype(np.float64) @ nearest(b)
    np.testing.assert_allclose(product(a, b, False, True, 0, np.empty((17, 5000), np.float32)), exact, atol=1e-4)


def test_an_element_depends_on_its_row_and_column_alone() -> None:
    """To the bit, wherever it is."""
    a, b = drawn(200, 900, seed=1), drawn(900, 150, seed=2)
    whole = product(a, b, False, True, 0, np.empty((200, 150), np.float32))
    part = product(a[37:90].copy(), b[:, 61:99].copy(), False, True, 0, np.empty((53, 38), np.float32))
    assert (part == whole[37:90, 61:99]).all()


def seen(weights: Array) -> Array:
    """The weights as products have them, by way of a matrix of ones."""
    ones = np.eye(64, dtype=np.float32)
    return product(ones, weights, False, True, 0, np.empty(weights.shape, np.float32), "weights")


def test_a_step_on_weights_is_seen() -> None:
    """Weights of bfloat16 that one step changed by a tenth of the distance between two values: on average the products
    have the change, where rounding to the nearest would take all of it back. What bfloat16 has stays as it is, and so
    does what is not finite."""
    before = nearest(drawn(64, 3000, seed=1))
    assert (seen(before) == before).all()
    step = np.where(drawn(64, 3000, seed=2) > 0, 1, -1) * np.abs(before) * np.float32(0.1 / 128)
    after = (before + step).astype(np.float32)
    assert (nearest(after) == before).mean() > 0.99
    change = seen(after) - before
    assert np.vdot(change, step) / np.vdot(step, step) == pytest.approx(1.0, abs=0.05)
    odd = before.copy()
    odd.view(np.uint32)[0, :5] = 0x7F800000, 0xFF800000, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF
    found = seen(odd)
    assert np.isposinf(found[0, 0])
    assert np.isneginf(found[0, 1])
    assert np.isnan(found[0, 2:5]).all()
    assert (found[:, 5:] == before[:, 5:]).all()
