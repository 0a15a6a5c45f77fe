"""The scores of one evaluation on disk: a line for each example, and a summary that says what was measured.

scores.jsonl, one object an example, in the order of the data:
  id, split, data      which example; `data` is the fingerprint of the split's content
  text                 the completion
  <metric>             every metric of the task, a number, null where it has no value (tldr: tokens, within_tol, …)
  judge                with a judge: its name, rounds and prompts; scores of another are not compared
  <criterion>          with a judge: the mean over its rounds, in [0, 1], null where all are missing
  composite            their sum; null where one is missing
  pass_rate, passed    share of rounds in which all criteria reach their thresholds; whether that is most of them (0, 1)
  rounds               with a judge: {criterion, composite, passed: [a value or null for each round]}

summary.json:
  schema_version, n    of this layout; examples
  label, step          what was evaluated; `step` in a run only, as `weights`: fingerprint of model and training
  split, sampler, model, tokenizer, data, meteor, task, max_new_tokens     provenance; what is not known is left out
  metrics              {name: mean over the examples that have a value, or null}; judged ones also as `<name>/se`; with
                       several samples, of which the lines have the first, over all where the task has metrics of them;
                       `errors/<kind>`: share of the examples that have that error
  score, criteria, headlines, panels, watched, errors    how the task shows them (`legend.py`)
  judge                as in the lines
  judging              model, endpoint (URL), rounds, prompts (fingerprints), thresholds,
                       usage (calls, tokens, dollars, cached),
                       missing ([{id, round, metric, error, attempts}]), noise ({metric: n, round_sd, icc, icc_mean}),
                       second (the same of a second judge, with `agreement`: {metric: n, pearson, spearman, …})
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smolsum.disk import replace, to_json
from smolsum.errors import SmolsumError

SCHEMA_VERSION = 1
BEHIND = "behind "
"""before the address, where a summary has the fingerprint of a model's weights"""
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
    """What `write_scores` wrote to `summary.json`. SmolsumError for a file that cannot be read."""
    path = folder / SUMMARY
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise SmolsumError(f"cannot read {path}: {error}", hint=f"remove {path} and evaluate again") from error
