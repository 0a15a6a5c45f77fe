"""Makes the scripts importable: tests ask the generator of the built-in data for texts. Sets MLX up as the package
does, before any test imports it: else a run in this process would round otherwise than one in a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import smolsum.policy  # noqa: F401

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
