"""Group relative policy optimisation: advantages, losses, the update."""

from __future__ import annotations

import smolsum.policy  # noqa: F401  loads a fast BLAS before MLX
