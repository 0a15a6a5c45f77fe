"""The machine's matmul rate, float32, at the sizes that an update multiplies, with all cores for one product."""

from __future__ import annotations

import time

from shapes import arguments, report

import smolsum.policy  # noqa: F401  loads a fast BLAS before MLX

# isort: split
import mlx.core as mx

from smolsum.policy.cpu.streams import blas_threads, streams


def rate(rows: int, inner: int, columns: int, seconds: float = 2.0) -> float:
    """Floating-point operations a second of (rows, inner) @ (inner, columns)."""
    a, b = mx.random.normal((rows, inner)), mx.random.normal((inner, columns))
    mx.eval(a @ b)
    times, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        mx.eval(a @ b)
        times += 1
    return 2 * rows * inner * columns * times / (time.perf_counter() - start)


if __name__ == "__main__":
    args = arguments()
    with blas_threads(len(streams())):
        report(rate=rate(args.group * args.tokens, args.shape.width, args.shape.ff))
