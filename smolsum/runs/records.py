"""TODO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from smolsum.errors import SmolsumError

SCHEMA_VERSION = 1


BEHIND = "behind "
"""before the address, where a summary has the fingerprint of a model's weights"""


SUMMARY = "summary.json"


SCORES = "scores.jsonl"


def has_scores(folder: Path) -> bool:
    """Whether the folder holds a finished evaluation."""
    return (folder / SUMMARY).exists()


def read_summary(folder: Path) -> dict[str, Any]:
    """What `write_scores` wrote to `summary.json`. SmolsumError for a file that cannot be read."""
    path = folder / SUMMARY
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise SmolsumError(f"cannot read {path}: {error}", hint=f"remove {path} and evaluate again") from error
