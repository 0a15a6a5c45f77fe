"""Group relative policy optimisation: advantages, losses, the update."""

import smolsum.policy  # noqa: F401  loads a fast BLAS before MLX
