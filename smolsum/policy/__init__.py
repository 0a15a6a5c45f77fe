"""The policy: loading, log-probs, gradients, sampling, saving.

The first import prepares this process for MLX on a Linux CPU, which has to come before MLX itself.
"""

from __future__ import annotations

from smolsum.policy.cpu import prepare

prepare()
