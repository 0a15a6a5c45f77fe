"""The policy: loading, log-probs, gradients, sampling, saving.

Importing this package prepares the process for MLX on a Linux CPU, which must happen before MLX is imported, for MLX's
products on a GPU, and for mlx-lm.
"""

import os
import resource
import sys

from smolsum.policy.cpu import prepare_cpu


def _keep_file_limit() -> None:
    """Have mlx-lm leave the limit of open files as it is. When imported it sets (2048, 4096): an error where less is
    allowed (`ulimit -n 1024`), and a loss for good where there is more."""
    set_limit = resource.setrlimit

    def unless_mlx_lm(kind: int, limits: tuple[int, int], /) -> None:
        if sys._getframe(1).f_globals.get("__name__") == "mlx_lm.utils":
            resource.setrlimit = set_limit  # it asks once
        else:
            set_limit(kind, limits)

    if "mlx_lm.utils" not in sys.modules:
        resource.setrlimit = unless_mlx_lm


prepare_cpu()
# MLX's GPUs otherwise round the factors of float32 products to 10 bits (TF32): log-probs of sampled tokens then differ
# from those of scoring, by 0.07 nats with SmolLM2-135M on an H200
os.environ.setdefault("MLX_ENABLE_TF32", "0")
_keep_file_limit()
