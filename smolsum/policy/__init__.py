"""The policy: loading, log-probs, gradients, sampling, saving.

Importing this package prepares the process for MLX on a Linux CPU, which must happen before MLX is imported.
"""

from smolsum.policy.cpu import prepare_cpu

prepare_cpu()
