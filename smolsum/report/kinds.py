"""What has to agree before runs are compared, and which of them do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from smolsum.report.study import Evaluation

T = TypeVar("T")
Key = Callable[[Any], Hashable]


def agreeing(entries: Sequence[T], key: Key, kinds: Sequence[Hashable]) -> tuple[list[T], list[T]]:
    """The entries of the most frequent kind (of its model, where the kind begins with one), and the others. An entry
    without a kind agrees with all."""
    counts: dict[Hashable, Counter[Hashable]] = {}
    for kind in kinds:
        assert isinstance(kind, tuple)
        counts.setdefault(kind[0], Counter())[kind] += 1
    chosen = {group: counter.most_common(1)[0][0] for group, counter in counts.items()}
    kept: list[T] = []
    dropped: list[T] = []
    for entry in entries:
        kind = key(entry)
        agrees = kind is None or (isinstance(kind, tuple) and chosen[kind[0]] == kind)
        (kept if agrees else dropped).append(entry)
    return kept, dropped


def _data(evaluation: Evaluation) -> Hashable:
    return ("", evaluation.scores.origin.get("data"))


def _judge(evaluation: Evaluation) -> Hashable:
    return ("", evaluation.judge) if evaluation.judge else None


def _task(task: Mapping[str, Any]) -> Hashable:
    return ("", task["name"])


def _target(task: Mapping[str, Any]) -> Hashable:
    return ("", task.get("target_tokens"), task.get("tolerance_tokens"))


KINDS: tuple[tuple[Key, Key, str], ...] = (
    (
        lambda run: _task(run.config["task"]),
        lambda e: _task(e.summary["task"]) if e.summary.get("task") else None,
        "its task",
    ),
    (lambda run: _data(run.last), _data, "the fingerprint of its test split"),
    (
        lambda run: _target(run.config["task"]),
        lambda e: _target(e.summary["task"]) if e.summary.get("task") else None,
        "its target length",
    ),
    (lambda run: _judge(run.last), _judge, "its judge"),
    (
        lambda run: (run.model, run.info["model"]["weights"], run.info["tokenizer"]),
        lambda e: (e.model, e.summary["model"]["weights"], e.summary["tokenizer"]),
        "the fingerprint of its base model",
    ),
)
