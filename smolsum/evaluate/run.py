"""One evaluation from a checkpoint to a scores file: generate, measure, judge. Each part is on disk before the next."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smolsum import console
from smolsum.console import Meter
from smolsum.errors import SmolsumError, UsageError
from smolsum.evaluate.agreement import judge_facts, judges_agreement
from smolsum.evaluate.judgements import Ledger
from smolsum.evaluate.judging import Estimate, Item, Judged, JudgeSpec, judge_items, recall
from smolsum.evaluate.prompts import SPLITS, encode_prompts, matching, split_fingerprints
from smolsum.evaluate.sampling import Sampler, complete, complete_behind, complete_remotely, measured
from smolsum.evaluate.storage import generated_from, obtain, write_scores
from smolsum.evaluate.tables import (
    error_shares,
    judged_columns,
    judged_summary,
    legend,
    say_unjudged,
    show_judged,
    show_measured,
)
from smolsum.evaluate.target import Target
from smolsum.files import writing
from smolsum.llm.client import Endpoint
from smolsum.llm.retry import RetryPolicy
from smolsum.policy.load import Policy
from smolsum.policy.weights import tokenizer_digest
from smolsum.runs.records import SUMMARY, has_scores, read_object
from smolsum.tasks import TASKS
from smolsum.tasks.base import Task
from smolsum.tasks.data import Split
from smolsum.types import Prompt, RolloutGroup

LOCK = "evaluation.lock"


@dataclass(frozen=True)
class JudgeOptions:
    """Who judges, and how: the judge, perhaps a second one to compare it with, and what a question may cost."""

    endpoint: Endpoint
    second: Endpoint | None
    rounds: int
    concurrency: int
    retry: RetryPolicy
    approve: Callable[[str, Estimate], bool]
    """asked with a judge's name before its first call"""
    fresh: bool = False
    """whether to ask for what another evaluation has been told already"""


def evaluate(
    subject: Target,
    *,
    split: str,
    sampler: Sampler,
    judging: JudgeOptions | None,
    quiet: bool,
    remedy: str,
) -> Path:
    """Evaluate a policy on a split; returns the folder with `scores.jsonl` and `summary.json`.

    What the folder has already is neither generated nor asked again. `remedy` is the command that goes on. Raises what
    loading raises, and the judge's failure, after what it did score has been written down.
    """
    task = TASKS[subject.config.task.name]
    with _holding(subject.folder, remedy):
        chosen, others = _splits(subject, task, split)
        groups, origin = _generate(subject, task, chosen, sampler, quiet, remedy)
        task.ask_ahead([(g.prompt, rollout) for g in groups for rollout in g.rollouts], subject.config)
        measure = task.measurer([chosen, *others], subject.config)
        rows = measured(groups, split, chosen.fingerprint, measure)
        how = sampler.name
        if sampler.samples > 1 and task.over_samples:
            drawn = [[measure(g.prompt, rollout) for rollout in g.rollouts] for g in groups]
            metrics = task.over_samples(drawn) | error_shares(task.errors, [row for own in drawn for row in own])
            how += "; means over all samples, intervals over examples"
        else:
            metrics = task.summarise(rows) | error_shares(task.errors, rows)
            how += "; means over the first sample of each" if sampler.samples > 1 else ""
        origin |= legend(task, metrics) | ({} if subject.checkpoint else {"command": remedy})
        if not has_scores(subject.folder):
            write_scores(subject.folder, rows, metrics, origin, remedy)
        show_measured(task, metrics, len(rows), of=split, how=how, remedy=remedy, quiet=quiet)
        items = [Item(g.prompt.id, g.prompt.source, g.rollouts[0].text, g.prompt.references) for g in groups]
        judged, facts, failure = _judge(subject.folder, task, items, judging, quiet, remedy)
        if judged is not None:
            columns = {
                key: judged_columns(task.criteria, judged.bench.rounds, found)
                for key, found in judged.judgements.items()
            }
            rows = [{**row, "judge": judged.bench.name, **columns[row["id"]]} for row in rows]
            metrics |= judged_summary(task.criteria, rows) | error_shares(task.errors, rows)
            origin = origin | {"judge": judged.bench.name, "judging": facts}
            asking = remedy if judging else f"{remedy} --judge {judged.bench.model}"
            show_judged(task.criteria, metrics, facts, judged.missing, asking, quiet=quiet)
        write_scores(subject.folder, rows, metrics, origin, remedy)
        if task.criteria and judged is None and failure is None:
            say_unjudged(task.criteria, remedy, quiet=quiet)
    if failure is not None:
        raise failure
    return subject.folder


def _splits(subject: Target, task: Task, split: str) -> tuple[Split, list[Split]]:
    """The split, and the others where the task needs them and the data has them."""
    chosen, others = task.load(subject.config, split), []
    for name in SPLITS:
        if name != split and task.needs_all_splits:
            with suppress(UsageError):  # data with one split are enough to evaluate
                others.append(task.load(subject.config, name))
    return chosen, others


def _generate(
    subject: Target, task: Task, split: Split, sampler: Sampler, quiet: bool, remedy: str
) -> tuple[list[RolloutGroup], dict[str, Any]]:
    """A completion for each prompt, and what the summary says of their origin."""
    tokenizing = subject.load(shapes_only=True)
    prompts, dropped = encode_prompts(tokenizing, task, split, subject.config)
    if split.left_out:
        console.warn(split.left_out)
    if dropped:
        console.warn(f"{dropped} prompts longer than {subject.config.data.max_input_tokens} tokens were dropped")
    matcher = matching(task, subject.config, console.warn)
    model, tokenizer = subject.identity(tokenizing), tokenizer_digest(tokenizing.tokenizer)
    fingerprints = split_fingerprints(split, prompts)
    step = subject.checkpoint.step if subject.checkpoint else 0

    def completer(missing: Sequence[Prompt]) -> Iterator[list[RolloutGroup]]:
        if subject.behind is not None:
            return complete_behind(subject.behind, tokenizing, missing, subject.config)
        policy: Policy = subject.load()
        sample = complete_remotely if subject.config.workers.urls else complete
        return sample(policy, missing, subject.config, version=step, sampler=sampler)

    measures = task.measures(subject.config)
    made_from = generated_from(model["weights"], tokenizer, fingerprints, subject.config, sampler, measures)
    with Meter("generating", len(prompts), quiet=quiet) as meter:
        groups = obtain(subject.folder, prompts, made_from, completer, remedy, meter.to, sampler.samples)
    origin = {
        "label": subject.label,
        **({"step": step} if subject.checkpoint else {}),
        "split": split.name,
        "sampler": sampler.name,
        "model": model,
        "tokenizer": tokenizer,
        "data": {split.name: fingerprints},
        "meteor": matcher,
        "task": measures,
        "max_new_tokens": subject.config.sampling.max_new_tokens,
    }
    return groups, origin


def _judge(
    folder: Path, task: Task, items: Sequence[Item], judging: JudgeOptions | None, quiet: bool, remedy: str
) -> tuple[Judged | None, dict[str, Any], SmolsumError | None]:
    """What the judge said, what the summary says of it, and why it could not say more."""
    if not task.criteria:
        return None, {}, None
    if judging is None:
        return *_recall(folder, task, items, quiet, remedy), None
    judged, failure = _ask(folder, task, items, judging.endpoint, judging, quiet, remedy)
    if not any(j.score is not None for found in judged.judgements.values() for j in found):
        if failure is None and judged.missing:
            failure = SmolsumError(
                f"the judge {judged.bench.model} gave no score at all: {judged.missing[0].error}",
                hint=f"{remedy} asks again",
            )
        return *_recall(folder, task, items, quiet, remedy), failure
    facts = judge_facts(task.criteria, judged)
    if judging.second is None:
        facts |= _second_recalled(folder, task, items, judged, remedy)
    else:
        try:
            other, later = _ask(folder, task, items, judging.second, judging, quiet, remedy)
            facts |= _second(task, judged, other)
        except SmolsumError as error:  # what the first one said stays
            later = error
        failure = failure or later
    return judged, facts, failure


def _second(task: Task, judged: Judged, other: Judged) -> dict[str, Any]:
    """What the summary says of a second judge."""
    return {"second": judge_facts(task.criteria, other) | {"agreement": judges_agreement(task.criteria, judged, other)}}


def _second_recalled(folder: Path, task: Task, items: Sequence[Item], judged: Judged, remedy: str) -> dict[str, Any]:
    """The same of one that an earlier evaluation in this folder asked, if one did."""
    then = (read_object(folder / SUMMARY).get("judging") or {}).get("second") if has_scores(folder) else None
    if not then or set(then["prompts"]) != {c.name for c in task.criteria} or then["model"] == judged.bench.model:
        return {}
    bench = JudgeSpec(then["model"], then["rounds"], then["prompts"], then.get("endpoint", ""))
    with Ledger(folder, bench.judge, remedy) as ledger:
        second = _second(task, judged, recall(items, task.criteria, bench, ledger))
    second["second"]["usage"] |= {"dollars": then["usage"].get("dollars")}
    return second


def _ask(
    folder: Path,
    task: Task,
    items: Sequence[Item],
    endpoint: Endpoint,
    judging: JudgeOptions,
    quiet: bool,
    remedy: str,
) -> tuple[Judged, SmolsumError | None]:
    if not quiet:
        console.narrate(f"judge {endpoint.model}: starting")  # DeepEval takes seconds to import
    total = len(items) * len(task.criteria) * judging.rounds
    with (
        Ledger(folder, endpoint.name, remedy, fresh=judging.fresh) as ledger,
        Meter(f"judging {endpoint.model}", total, quiet=quiet) as meter,
    ):

        def report(done: int, failed: int) -> None:
            meter.to(done, f"failed {failed}" if failed else "")

        return judge_items(
            items,
            task.criteria,
            endpoint,
            rounds=judging.rounds,
            concurrency=judging.concurrency,
            retry=judging.retry,
            ledger=ledger,
            approve=lambda estimate: judging.approve(endpoint.model, estimate),
            report=report,
        )


def _recall(
    folder: Path, task: Task, items: Sequence[Item], quiet: bool, remedy: str
) -> tuple[Judged | None, dict[str, Any]]:
    """What a judge said in an earlier evaluation in this folder."""
    then = read_object(folder / SUMMARY).get("judging") if has_scores(folder) else None
    if not then or set(then["prompts"]) != {c.name for c in task.criteria}:
        return None, {}
    bench = JudgeSpec(then["model"], then["rounds"], then["prompts"], then.get("endpoint", ""))
    if not quiet:
        console.narrate(f"the judge's scores are those that {bench.model} gave before")
    with Ledger(folder, bench.judge, remedy) as ledger:
        judged = recall(items, task.criteria, bench, ledger)
    facts = judge_facts(task.criteria, judged)
    facts["usage"] |= {"dollars": then["usage"].get("dollars")}
    return judged, then | facts | _second_recalled(folder, task, items, judged, remedy)


@contextmanager
def _holding(folder: Path, remedy: str) -> Iterator[None]:
    """One process at a time writes an evaluation; the kernel lets go of the lock however it ends."""
    with writing(folder, remedy):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("ab")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"{folder} is being evaluated by another process", hint="wait until it ends") from error
        yield
