"""What has to agree before runs are compared, and which of them do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from smolsum.report.study import Evaluation, LeftOut, Trained
from smolsum.stats.loading import PROMPT

T = TypeVar("T")
Key = Callable[[Any], Hashable]
Settings = tuple[tuple[str, str], ...]
"""of a task, by name, each as text: two are equal where the same was measured"""
_LISTED = 4
"""names that a sentence has room for"""


def agreeing(entries: Sequence[T], key: Key, kinds: Sequence[Hashable]) -> tuple[list[T], list[tuple[T, str]]]:
    """The entries of the most frequent kind (of its model, where the kind begins with one), and the others, each with
    what is said if as many are of its kind: the first kind was kept. An entry without a kind agrees with all."""
    counts: dict[Hashable, Counter[Hashable]] = {}
    for kind in kinds:
        assert isinstance(kind, tuple)
        counts.setdefault(kind[0], Counter())[kind] += 1
    chosen = {group: counter.most_common(1)[0] for group, counter in counts.items()}
    kept: list[T] = []
    dropped: list[tuple[T, str]] = []
    for entry in entries:
        kind = key(entry)
        if kind is None:
            kept.append(entry)
            continue
        assert isinstance(kind, tuple)
        most, times = chosen[kind[0]]
        if kind == most:
            kept.append(entry)
        else:
            tie = counts[kind[0]][kind] == times
            told = _unlike(kind, most) + (f" (a tie, {times} to {times}: the first was kept)" if tie else "")
            dropped.append((entry, told))
    return kept, dropped


def judge_of_most(trained: Sequence[Trained], baselines: Sequence[Evaluation]) -> str | None:
    """The judge that scored the most runs (their last step) and baselines; None if nothing was judged."""
    asked = [{e.judge for e in run.evaluations if e.step == run.last.step} for run in trained]
    asked += [{e.judge} for e in baselines]
    counts = Counter(judge for judges in asked for judge in sorted(filter(None, judges)))
    return counts.most_common(1)[0][0] if counts else None


def measured_alike(trained: Sequence[Trained], baselines: Sequence[Evaluation]) -> tuple[list[Trained], list[LeftOut]]:
    """The runs, each with those of its evaluations alone that were measured as most runs and baselines were, or as its
    last was, where its last step has none such; and the other evaluations."""
    asked = [{_settings(e) for e in run.evaluations if e.step == run.last.step} for run in trained]
    asked += [{_settings(e)} for e in baselines]
    counts = Counter(settings for found in asked for settings in sorted(filter(None, found)))
    most = counts.most_common(1)[0][0] if counts else None
    runs, out = [], []
    for run in trained:
        own = most if any(e.step == run.last.step and _settings(e) in (most, None) for e in run.evaluations) else None
        own = own or _settings(run.last)
        odd = [e for e in run.evaluations if own is not None and _settings(e) not in (own, None)]
        names = [e.folder for e in odd]
        runs.append(replace(run, evaluations=tuple(e for e in run.evaluations if e.folder not in names)))
        for e in odd:
            told = f"mixed: {MEASURED} is not that of the others{_unlike(_settings(e) or (), own or ())}"
            out.append(LeftOut(f"{run.paths.name}/{e.folder.name}", told))
    return runs, out


def aside(trained: Sequence[Trained], baselines: Sequence[Evaluation]) -> list[str]:
    """What may differ between those that are compared, and does: `smolsum stats` warns of it too."""
    every = [*((run.paths.name, run.last) for run in trained), *((e.folder.name, e) for e in baselines)]
    own = [(run.paths.name, run.last) for run in trained]
    said = []
    for what, named in (
        (
            "cut completions at different lengths (max_new_tokens)",
            _by(every, lambda e: e.summary.get("max_new_tokens")),
        ),
        ("matched METEOR's synonyms by different means", _by(every, lambda e: e.summary.get("meteor"))),
        *(
            (f"gave {model} different prompts", _by([one for one in own if one[1].model == model], _prompts))
            for model in sorted({run.model for run in trained})
        ),
    ):
        if len(named) > 1:
            parts = [f"{str(kind)[:32]} in {_some(names)}" for kind, names in named.items()]
            said.append(f"Mixed: the evaluations {what}: {'; '.join(parts)}.")
    return said


def _by(entries: Sequence[tuple[str, Evaluation]], of: Key) -> dict[Hashable, list[str]]:
    """Names of the evaluations of each kind, the rarest first."""
    found: dict[Hashable, list[str]] = {}
    for name, evaluation in entries:
        if (kind := of(evaluation)) is not None:
            found.setdefault(kind, []).append(name)
    return dict(sorted(found.items(), key=lambda one: len(one[1])))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _LISTED else f"{len(names)} others"


def _prompts(evaluation: Evaluation) -> Hashable:
    prompts: Hashable = evaluation.summary.get("data", {}).get("test", {}).get("prompts")
    return prompts


def _data(evaluation: Evaluation) -> Hashable:
    return ("", evaluation.scores.origin.get("data"))


def _judge(evaluation: Evaluation) -> Hashable:
    return ("", evaluation.judge) if evaluation.judge else None


def _task(task: Mapping[str, Any]) -> Hashable:
    return ("", task["name"])


def _settings(evaluation: Evaluation, otherwise: Mapping[str, Any] | None = None) -> Settings | None:
    """What an evaluation's measures depend on, or that of its run where it does not say: all settings of the task but
    those of the prompt."""
    task = evaluation.summary.get("task") or otherwise
    prompting = evaluation.summary.get("prompting", [PROMPT])
    return tuple(sorted((k, str(v)) for k, v in task.items() if k not in prompting)) if task else None


def _measured(evaluation: Evaluation, otherwise: Mapping[str, Any] | None = None) -> Hashable:
    found = _settings(evaluation, otherwise)
    return None if found is None else ("", *found)


def _unlike(kind: Sequence[Hashable], most: Hashable) -> str:
    """The settings that two kinds are told apart by, in words; empty where they are of something else."""
    assert isinstance(most, tuple)
    own: dict[str, str] = dict(part for part in kind if isinstance(part, tuple))
    theirs: dict[str, str] = dict(part for part in most if isinstance(part, tuple))
    names = sorted(name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name))
    told = ", ".join(f"task.{name} {own.get(name, 'not set')}, theirs {theirs.get(name, 'not set')}" for name in names)
    return f": {told}" if told else ""


MEASURED = "how it was measured"
KINDS: tuple[tuple[Key, Key, str], ...] = (
    (
        lambda run: _task(run.config["task"]),
        lambda e: _task(e.summary["task"]) if e.summary.get("task") else None,
        "its task",
    ),
    (lambda run: _data(run.last), _data, "the fingerprint of its test split"),
    (
        lambda run: _measured(run.last, run.config["task"]),
        _measured,
        MEASURED,
    ),
    (lambda run: _judge(run.last), _judge, "its judge"),
    (
        lambda run: (run.model, run.info["model"]["weights"], run.info["tokenizer"]),
        lambda e: (e.model, e.summary["model"]["weights"], e.summary["tokenizer"]),
        "the fingerprint of its base model",
    ),
)
