"""What the suites share: a task that only evaluates, on files that the user has. A prompt is the benchmark's own, in
the model's own chat template, and completions are scored as the benchmark scores them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest
from typing import Any, TypeVar

import xxhash

from smolsum.config.presets import TaskPresets
from smolsum.config.sections import Config, DataConfig, TaskConfig
from smolsum.errors import UsageError
from smolsum.rewards.signal import Values
from smolsum.tasks.base import (
    ErrorKind,
    Measure,
    Metric,
    MetricRow,
    MetricTable,
    Summary,
    Task,
    TaskEvaluation,
    TaskPrompts,
    TaskRewards,
)
from smolsum.tasks.data import Split
from smolsum.tasks.data_splits import PlacedRow, read_split
from smolsum.tasks.strict_json.answer import CLOSE, OPEN
from smolsum.tasks.text_metrics import length_table
from smolsum.types import Prompt, Rollout, RolloutGroup

NO_FILES = "none"
"""the value of `data.path` where the user names no files"""
TOKENS = Metric("completions/mean_length", "tokens", ".1f")
T = TypeVar("T")


def suite(
    name: str,
    *,
    load: Callable[[Config], Split],
    measure: Callable[[Prompt, Rollout], dict[str, Any]],
    summarise: Callable[[Sequence[MetricRow]], Summary],
    headlines: tuple[Metric, ...],
    tables: tuple[MetricTable, ...],
    errors: tuple[ErrorKind, ...],
    score: str,
    checked_by: Callable[[], dict[str, str]] = dict,
    settings: type[TaskConfig] = TaskConfig,
    max_new_tokens: int,
    data: Mapping[str, Any],
) -> Task:
    """Return the task of a suite. `load` reads its one split, `measure` gives a completion's columns, `passed` among
    them; `checked_by` names what decides these besides the settings, such as the version of a package."""

    def test_split(config: Config, split: str) -> Split:
        if split != "test":
            raise UsageError(
                f"{name} measures models and has no {split} split", hint=f"smolsum eval MODEL --suite {name}"
            )
        return load(config)

    def measured(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
        return measure(prompt, rollout) | {"tokens": rollout.length, "truncated": float(rollout.truncated)}

    def measurer(splits: Sequence[Split], config: Config) -> Measure:
        return measured

    def summary(rows: Sequence[MetricRow]) -> Summary:
        cut = sum(row["truncated"] for row in rows) / len(rows)
        return summarise(rows) | {"truncated": cut} | length_table([row["tokens"] for row in rows])

    def passed(groups: Sequence[RolloutGroup], config: Config) -> Values:
        return [[measure(group.prompt, rollout)["passed"] for rollout in group.rollouts] for group in groups]

    return Task(
        name=name,
        settings=settings,
        prompts=TaskPrompts(load=test_split),
        rewards=TaskRewards(signals={"passed": passed}),
        evaluation=TaskEvaluation(
            measurer=measurer,
            measures=lambda config: config.task.measures | checked_by(),
            summarise=summary,
            headlines=(*headlines, TOKENS),
            tables=(*tables, MetricTable("length", (TOKENS, Metric("truncated", "cut off")))),
            errors=(*errors, ErrorKind("cut off", "the token limit ended it", lambda row: row["truncated"] > 0)),
            score=score,
        ),
        presets=TaskPresets(
            defaults={
                # a file is all of a benchmark's prompts; `data_splits` calls the rows of a file its training split
                "data": {"path": NO_FILES, "test_split": "train", "max_input_tokens": 8192, **data},
                "sampling": {"max_new_tokens": max_new_tokens},
            }
        ),
    )


def no_files(name: str, what: str) -> UsageError:
    """Return the error for a suite of which no files are named."""
    return UsageError(f"suite {name} needs the files of the benchmark", hint=f"--suite-path PATH: {what}")


def drawn(found: Sequence[T], key: Callable[[T], str], data: DataConfig) -> tuple[list[T], str]:
    """Return `data.test_rows` of these, drawn by the seed, in their order (0: all), and in words how many of how many.
    Whether one is drawn depends on its key alone."""
    if not 0 < data.test_rows < len(found):
        return list(found), f"{len(found):,}"
    lots = [xxhash.xxh3_64_intdigest(f"{data.split_seed} {key(one)}".encode()) for one in found]
    chosen = sorted(nsmallest(data.test_rows, range(len(found)), key=lots.__getitem__))
    said = f"{len(found):,}, of which data.test_rows = {data.test_rows:,} by data.split_seed = {data.split_seed}"
    return [found[place] for place in chosen], said


def read_rows(
    data: DataConfig,
    name: str,
    fields: Mapping[str, Any],
    what: str,
    asked: Callable[[Mapping[str, Any]], bool] = lambda row: True,
) -> tuple[list[PlacedRow], str]:
    """Return the rows of a file of the benchmark, or those drawn of them, that are `asked`, and where they are from.
    Raises UsageError where a row lacks one of the `fields`, by name with its type, of which the first identifies it;
    `what` says which file is meant."""
    identity, seen = next(iter(fields)), dict[Any, str]()
    try:
        found, origin = read_split(replace(data, test_rows=0), "test", post=lambda row, where: "", texts=())
    except UsageError as error:
        raise UsageError(error.message, hint=f"--suite-path PATH: {what}") from error
    for where, row, _ in found:
        for field, kind in fields.items():
            value = row.get(field)
            if not isinstance(value, kind) or value in ("", []):
                has = f"{str(value)[:40]!r} as {field!r}" if field in row else f"no {field!r}, only {', '.join(row)}"
                raise UsageError(f"{where} is no row of {name}: it has {has}", hint=f"--suite-path PATH: {what}")
        if (first := seen.setdefault(row[identity], where)) != where:
            raise UsageError(f"{where} has the {identity} {row[identity]!r} of {first}", hint="remove one of the rows")
    chosen, said = drawn([row for row in found if asked(row.columns)], lambda row: str(row.columns[identity]), data)
    return chosen, f"{origin}; asked are {said}"


def answer_of(text: str) -> str:
    """Return what follows the thoughts of a model that thinks, which no benchmark scores; empty while it thinks."""
    _, close, said = text.rpartition(CLOSE)
    return said.strip() if close else "" if text.lstrip().startswith(OPEN) else text
