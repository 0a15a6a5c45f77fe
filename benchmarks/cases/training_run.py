"""A whole run of `smolsum train` in this process, on a model of random weights; reports the memory that it took."""

from __future__ import annotations

import sys

from shapes import report

from smolsum.cli.main import main as smolsum


def main() -> None:
    """Run `smolsum` with this script's arguments, then print the peaks of MLX's arrays and of the process."""
    code = smolsum(sys.argv[1:])
    if code:
        raise SystemExit(code)
    import mlx.core as mx

    report(mlx_peak_gb=round(mx.get_peak_memory() / 1e9, 2))


if __name__ == "__main__":
    main()
