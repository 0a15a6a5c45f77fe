"""Sets MLX up as the package does before any test imports it, so that runs in this process round as runs in a process
of their own. Property-based tests have no deadline, as other processes may slow the machine down.
"""

from __future__ import annotations

from hypothesis import settings

import smolsum.policy  # noqa: F401

settings.register_profile("smolsum", deadline=None)
settings.load_profile("smolsum")
