"""What has to agree before runs and evaluations are compared. What disagrees with most of them is left out with the
reason; what may differ is said in a notice."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from smolsum.errors import UsageError
from smolsum.report.collect import EvaluationResult, LeftOut, ReportInputs, TrainedRun
from smolsum.stats.loading import PROMPT

Entry: TypeAlias = TrainedRun | EvaluationResult
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
    entries: list[Entry] = [*measured.trained, *measured.baselines]
    left_out = list(measured.left_out)
    for what, kind_of in _CHECKS:
        entries, dropped = _agreeing(entries, kind_of)
        for entry, difference in dropped:
            reason = f"mixed: {what} is not that of the other runs{difference}"
            run = entry if isinstance(entry, TrainedRun) else None
            left_out.append(LeftOut(_name(entry), reason, run=run))
    trained = tuple(entry for entry in entries if isinstance(entry, TrainedRun))
    baselines = tuple(entry for entry in entries if isinstance(entry, EvaluationResult))
    if not entries:
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in left_out)
        raise UsageError(f"nothing to report: {reasons}", hint="smolsum runs lists what there is")
    kept = ReportInputs(trained, baselines, tuple(left_out))
    return replace(kept, notices=(*(run.gap for run in trained if run.gap), *_differences_aside(kept)))


def _most_frequent(inputs: ReportInputs, of: Callable[[EvaluationResult], T | None]) -> T | None:
    """The value that the most runs (evaluations of their last step) and baselines have; None without any value."""
    found = [{of(e) for e in run.evaluations if e.step == run.last.step} for run in inputs.trained]
    found += [{of(e)} for e in inputs.baselines]
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
    """A sentence for each thing that may differ between compared evaluations, and does."""
    every = inputs.named_evaluations
    runs = every[: len(inputs.trained)]
    found = [
        (
            "cut completions at different lengths (max_new_tokens)",
            _names_by(every, attrgetter("summary.max_new_tokens")),
        ),
        ("matched METEOR's synonyms by different means", _names_by(every, attrgetter("summary.meteor"))),
    ]
    found += [
        (f"gave {model} different prompts", _names_by([r for r in runs if r[1].model == model], _prompts))
        for model in sorted({run.model for run in inputs.trained})
    ]
    sentences = []
    for what, names in found:
        if len(names) > 1:
            parts = [f"{str(value)[:32]} in {_listed(some)}" for value, some in names.items()]
            sentences.append(f"Mixed: the evaluations {what}: {'; '.join(parts)}.")
    return sentences


def _names_by(
    entries: Sequence[tuple[str, EvaluationResult]], of: Callable[[EvaluationResult], Hashable]
) -> dict[Hashable, list[str]]:
    """Names of the evaluations with each value, the rarest value first."""
    found: dict[Hashable, list[str]] = {}
    for name, evaluation in entries:
        if (value := of(evaluation)) is not None:
            found.setdefault(value, []).append(name)
    return dict(sorted(found.items(), key=lambda one: len(one[1])))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _MAX_NAMES else f"{len(names)} others"


def _prompts(evaluation: EvaluationResult) -> Hashable:
    test = evaluation.summary.data.get("test")
    return test and (test.prompts or None)


def _name(entry: Entry) -> str:
    return entry.name if isinstance(entry, TrainedRun) else entry.folder.name


def _last(entry: Entry) -> EvaluationResult:
    return entry.last if isinstance(entry, TrainedRun) else entry


def _task_settings(entry: Entry) -> Mapping[str, Any] | None:
    """The settings of an entry's task; None if an evaluation does not state them."""
    return entry.config["task"] if isinstance(entry, TrainedRun) else entry.summary.task


def _settings(evaluation: EvaluationResult, default: Mapping[str, Any] | None = None) -> Settings | None:
    """What an evaluation's measures depend on: all settings of its task except those of the prompt; from `default` if
    it states none."""
    task = evaluation.summary.task or default
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


def _task(entry: Entry) -> Kind | None:
    settings = _task_settings(entry)
    return ("", settings["name"]) if settings else None


def _measured(entry: Entry) -> Kind | None:
    settings = _settings(_last(entry), _task_settings(entry))
    return None if settings is None else ("", settings)


def _judge(entry: Entry) -> Kind | None:
    judge = _last(entry).judge
    return ("", judge) if judge else None


def _base_model(entry: Entry) -> Kind:
    made_of = entry.info if isinstance(entry, TrainedRun) else entry.summary
    return entry.model, (made_of.model.weights, made_of.tokenizer)


_CHECKS: tuple[tuple[str, Callable[[Entry], Kind | None]], ...] = (
    ("its task", _task),
    ("the fingerprint of its test split", lambda entry: ("", _last(entry).scores.origin.get("data"))),
    (_MEASURED, _measured),
    ("its judge", _judge),
    ("the fingerprint of its base model", _base_model),
)
