"""Makes the scripts importable: tests ask the generator of the built-in data for texts."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
