"""The scores of one evaluation on disk: a line for each example, and a summary that says what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smolsum.disk import replace, to_json

SCHEMA_VERSION = 1
SUMMARY = "summary.json"
SCORES = "scores.jsonl"


def has_scores(folder: Path) -> bool:
    """Whether the folder holds a finished evaluation."""
    return (folder / SUMMARY).exists()


def write_scores(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, float | None],
    origin: Mapping[str, Any],
    remedy: str,
) -> None:
    """Write `scores.jsonl`, then `summary.json` with the split's metrics and the fingerprints in `origin`.

    `remedy` is the command that goes on after a full disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / SCORES, b"".join(to_json(row) for row in rows), remedy)
    summary = {"schema_version": SCHEMA_VERSION, "n": len(rows), **origin, "metrics": metrics}
    replace(folder / SUMMARY, to_json(summary, indent=2), remedy)


def read_summary(folder: Path) -> dict[str, Any]:
    """What `write_scores` wrote to `summary.json`."""
    return dict(json.loads((folder / SUMMARY).read_text()))
