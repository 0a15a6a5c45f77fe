"""The policy: loading, log-probs, sampling.

The first import sets MLX up for the CPU, which must come before MLX itself.
"""

from __future__ import annotations

import os

from smolsum.policy.cpu import blas, streams

blas.preload()
streams.keep_freed_memory()
# evaluate breadth-first, so that graphs on different streams are under way at the same time
os.environ.setdefault("MLX_BFS_MAX_WIDTH", "10000")
