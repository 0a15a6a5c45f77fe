"""Sets MLX up as the package does before any test imports it, so that runs in this process round as runs in a process
of their own. Property-based tests have no deadline, as other processes may slow the machine down. Bytecode is kept.
"""

from __future__ import annotations

import os
import sys

# Some machines turn bytecode off, and each process that a test starts would then compile a thousand modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

from hypothesis import settings  # noqa: E402

import smolsum.policy  # noqa: E402, F401

settings.register_profile("smolsum", deadline=None)
settings.load_profile("smolsum")
