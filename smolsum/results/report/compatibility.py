"""What has to agree before runs and evaluations are compared. What disagrees with most of them is left out with the
reason; what may differ is said in a notice."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from smolsum.errors import UsageError
from smolsum.results.report.collect import Entry, EvaluationResult, LeftOut, ReportInputs, TrainedRun
from smolsum.results.score_columns import PROMPT

Settings: TypeAlias = tuple[tuple[str, str], ...]
"""settings of a task by name, as text; equal settings measure the same"""
T = TypeVar("T", str, Settings)
Kind: TypeAlias = tuple[str, Hashable]
"""a value that has to be equal within its group: the group (empty: all, or a model's name) and the value"""
_MEASURED = "how it was measured"
_MAX_NAMES = 4
"""names that a sentence has room for"""


def comparable(inputs: ReportInputs) -> ReportInputs:
    """Return the inputs with what cannot be compared moved to `left_out`. Raises UsageError if nothing remains."""
    judge = _most_frequent(inputs, lambda e: e.judge)
    measured = _measured_alike(replace(inputs, trained=tuple(_judged_by(run, judge) for run in inputs.trained)))
    entries = measured.entries
    left_out = list(measured.left_out)
    for what, kind_of in _CHECKS:
        entries, dropped = _agreeing(entries, kind_of)
        for entry, difference in dropped:
            reason = f"mixed: {what} is not that of the other runs{difference}"
            left_out.append(LeftOut(entry.name, reason, run=entry if isinstance(entry, TrainedRun) else None))
    trained = tuple(entry for entry in entries if isinstance(entry, TrainedRun))
    baselines = tuple(entry for entry in entries if isinstance(entry, EvaluationResult))
    if not entries:
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in left_out)
        raise UsageError(f"nothing to report: {reasons}", hint="smolsum runs lists what there is")
    kept = ReportInputs(trained, baselines, tuple(left_out))
    gaps = [run.gap for run in trained if run.gap]
    lost = [f"{name}: {e.summary.left_out}" for name, e in kept.named_evaluations if e.summary.left_out]
    return replace(kept, notices=(*gaps, *lost, *_differences_aside(kept)))


def _most_frequent(inputs: ReportInputs, of: Callable[[EvaluationResult], T | None]) -> T | None:
    """The value that the most runs (evaluations of their last step) and baselines have; None without any value."""
    found = [{of(e) for e in run.evaluations if e.step == run.last.step} for run in inputs.trained]
    found += [{of(e)} for e in inputs.baselines]
    # sorted, as the order of a set is another in each process, and it decides a tie
    counts = Counter(value for values in found for value in sorted(filter(None, values)))
    return counts.most_common(1)[0][0] if counts else None


def _judged_by(run: TrainedRun, judge: str | None) -> TrainedRun:
    """The run without evaluations by other judges; unchanged if its last step would have none left."""
    kept = tuple(e for e in run.evaluations if e.judge in (judge, None))
    return replace(run, evaluations=kept) if kept and kept[-1].step == run.last.step else run


def _measured_alike(inputs: ReportInputs) -> ReportInputs:
    """Leave out the evaluations of runs that were not measured as most runs and baselines were; of a run whose last
    step was not, those that were not measured as its last step."""
    most = _most_frequent(inputs, _settings)
    runs, left_out = [], list(inputs.left_out)
    for run in inputs.trained:
        usual = any(e.step == run.last.step and _settings(e) in (most, None) for e in run.evaluations)
        own = (most if usual else None) or _settings(run.last)
        odd = [e for e in run.evaluations if own is not None and _settings(e) not in (own, None)]
        odd_folders = [e.folder for e in odd]
        runs.append(replace(run, evaluations=tuple(e for e in run.evaluations if e.folder not in odd_folders)))
        for e in odd:
            reason = f"mixed: {_MEASURED} is not that of the others{_difference(_settings(e), own)}"
            left_out.append(LeftOut(f"{run.name}/{e.folder.name}", reason))
    return replace(inputs, trained=tuple(runs), left_out=tuple(left_out))


def _agreeing(
    entries: Sequence[Entry], kind_of: Callable[[Entry], Kind | None]
) -> tuple[list[Entry], list[tuple[Entry, str]]]:
    """The entries of the most frequent kind of their group, and the others, each with what differs. In a tie the
    first kind is kept. An entry without a kind agrees with all."""
    kinds = [kind_of(entry) for entry in entries]
    counts: dict[str, Counter[Hashable]] = {}
    for group, value in filter(None, kinds):
        counts.setdefault(group, Counter())[value] += 1
    kept: list[Entry] = []
    dropped: list[tuple[Entry, str]] = []
    for entry, kind in zip(entries, kinds, strict=True):
        if kind is None:
            kept.append(entry)
            continue
        group, value = kind
        ((most, times),) = counts[group].most_common(1)
        if value == most:
            kept.append(entry)
            continue
        tie = f" (a tie, {times} to {times}: the first was kept)" if counts[group][value] == times else ""
        dropped.append((entry, (_difference(value, most) if kind_of is _measured else "") + tie))
    return kept, dropped


def _differences_aside(inputs: ReportInputs) -> list[str]:
    """A sentence for each thing that may differ between compared evaluations, and does; the rarest value first."""
    every = inputs.named_evaluations
    prompts = {model: [(run.name, run.last) for run in inputs.runs_of(model)] for model in inputs.models}
    asides: list[tuple[str, Sequence[tuple[str, EvaluationResult]], Callable[[EvaluationResult], Hashable]]] = [
        ("cut completions at different lengths (max_new_tokens)", every, attrgetter("summary.max_new_tokens")),
        ("matched METEOR's synonyms by different means", every, attrgetter("summary.meteor")),
        *((f"gave {model} different prompts", runs, _prompts) for model, runs in prompts.items()),
    ]
    sentences = []
    for what, evaluations, of in asides:
        names: dict[Hashable, list[str]] = {}
        for name, evaluation in evaluations:
            if (value := of(evaluation)) is not None:
                names.setdefault(value, []).append(name)
        if len(names) > 1:
            rarest = sorted(names.items(), key=lambda one: len(one[1]))
            parts = [f"{str(value)[:32]} in {_listed(some)}" for value, some in rarest]
            sentences.append(f"Mixed: the evaluations {what}: {'; '.join(parts)}.")
    return sentences


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _MAX_NAMES else f"{len(names)} others"


def _prompts(evaluation: EvaluationResult) -> Hashable:
    test = evaluation.summary.data.get("test")
    return test and (test.prompts or None)


def _settings(evaluation: EvaluationResult, default: Mapping[str, Any] | None = None) -> Settings | None:
    """What an evaluation's measures depend on: all settings of its task except those of the prompt; from `default` if
    it states none."""
    task = evaluation.task or default
    prompting = [PROMPT] if evaluation.summary.prompting is None else evaluation.summary.prompting
    return tuple(sorted((k, str(v)) for k, v in task.items() if k not in prompting)) if task else None


def _difference(own: Hashable, theirs: Hashable) -> str:
    """The settings that differ, in words."""
    assert isinstance(own, tuple)
    assert isinstance(theirs, tuple)
    ours, others = dict(own), dict(theirs)
    names = sorted(name for name in ours.keys() | others.keys() if ours.get(name) != others.get(name))
    unset = "not set"
    differences = ", ".join(f"task.{name} {ours.get(name, unset)}, theirs {others.get(name, unset)}" for name in names)
    return f": {differences}" if differences else ""


def _measured(entry: Entry) -> Kind | None:
    settings = _settings(entry.last, entry.task)
    return None if settings is None else ("", settings)


def _base_model(entry: Entry) -> Kind:
    made_of = entry.info if isinstance(entry, TrainedRun) else entry.summary
    return entry.model, (made_of.model.weights, made_of.tokenizer)


_CHECKS: tuple[tuple[str, Callable[[Entry], Kind | None]], ...] = (
    ("its task", lambda entry: ("", entry.task["name"]) if entry.task else None),
    ("the fingerprint of its test split", lambda entry: ("", entry.last.scores.origin.get("data"))),
    (_MEASURED, _measured),
    ("its judge", lambda entry: ("", entry.last.judge) if entry.last.judge else None),
    ("the fingerprint of its base model", _base_model),
)
