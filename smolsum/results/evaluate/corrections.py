"""The share that passes, corrected for the judge's errors: as a person's labels of some of the completions show them,
or a validation of the judge on planted faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from smolsum.results.evaluate.judge_validation import find_validations
from smolsum.results.evaluate.judgements import Judged, JudgeSpec
from smolsum.stats.judged_share import JudgeErrors, corrected_share
from smolsum.types import PASS_RATE, PASSED, Criterion

Columns = Mapping[str, Mapping[str, Any]]


def corrections(
    criteria: Sequence[Criterion], judged: Judged, others: Sequence[Judged], runs_dir: Path
) -> list[dict[str, Any]]:
    """Return the corrected shares of what a judge passes, by every source of its errors: those of a person's labels
    first, as they are of these completions. Each has `source`, `raw`, the judge's errors, and `share`, `low` and
    `high`, which are None for a judge that cannot tell good from bad."""
    columns = judged.columns(criteria)
    found = [by_labels(columns, other.columns(criteria), other.spec) for other in others if other.spec.by_person]
    rates = _rates(columns)
    for folder, validation in find_validations(runs_dir, judged.spec.judge, judged.spec.prompts):
        if validation.errors is not None and rates:
            found.append(_corrected(str(folder), list(rates.values()), validation.errors))
    return [one for one in found if one is not None]


def by_labels(columns: Columns, labels: Columns, spec: JudgeSpec) -> dict[str, Any] | None:
    """Return the corrected share of the completions without a label, with the judge's errors on those with one; None
    unless there are completions without one, labels that pass and labels that fail."""
    truth = {key: bool(row[PASSED]) for key, row in labels.items() if row[PASSED] is not None}
    rates = _rates(columns)
    good = [rates[key] for key, passed in truth.items() if passed and key in rates]
    bad = [1 - rates[key] for key, passed in truth.items() if not passed and key in rates]
    rest = [rate for key, rate in rates.items() if key not in truth]
    if not (good and bad and rest):
        return None
    return _corrected(spec.judge, rest, JudgeErrors(fmean(good), len(good), fmean(bad), len(bad)))


def _rates(columns: Columns) -> dict[str, float]:
    return {key: row[PASS_RATE] for key, row in columns.items() if row[PASS_RATE] is not None}


def _corrected(source: str, rates: Sequence[float], errors: JudgeErrors) -> dict[str, Any]:
    raw = fmean(rates)
    share = corrected_share(raw, len(rates), errors)
    ends = asdict(share) if share else dict.fromkeys(("share", "low", "high"))
    return {"source": source, "raw": raw, "n": len(rates), **asdict(errors), **ends}
