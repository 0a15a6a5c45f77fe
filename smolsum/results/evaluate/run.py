"""One evaluation: complete the prompts, measure, summarise, ask the judge. Each part is saved before the next, and
nothing that the folder holds is made again. The stages of a training use `score`, `smolsum eval` and `smolsum baseline`
use `evaluate`, which adds the judge."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smolsum import console
from smolsum.config.sections import Config
from smolsum.console import Meter
from smolsum.errors import InterruptedRun, SmolsumError, UnreachableError, UsageError
from smolsum.files import digest, locked
from smolsum.policy.load import Policy
from smolsum.policy.weights import tokenizer_digest
from smolsum.results.evaluate.evaluated_model import Target
from smolsum.results.evaluate.judge_cost import CostLimitError
from smolsum.results.evaluate.judgements import judged_summary
from smolsum.results.evaluate.prompt_encoding import encode_prompts, meteor_matching, split_fingerprints
from smolsum.results.evaluate.sampling import GREEDY, DecodingSettings, complete, complete_by_api, complete_by_workers
from smolsum.results.evaluate.storage import KEY, TASK, WEIGHTS, Completer, find_kept, obtain, write_scores
from smolsum.results.evaluate.tables import (
    describe_task,
    error_shares,
    show_judged,
    show_measured,
    show_unjudged,
    with_judge,
)
from smolsum.rollout.sampling_count import SamplingCounter, ShowCount
from smolsum.runs.evaluation_records import BEHIND, Judging
from smolsum.runs.typed_json import has_scores, read_summary
from smolsum.runs.writer import FIXED
from smolsum.source import source_digest
from smolsum.tasks import TASKS
from smolsum.tasks.base import Task
from smolsum.tasks.data import Split, check_references
from smolsum.tasks.data_files import SPLITS
from smolsum.types import Prompt, Rollout, RolloutGroup, SamplingProgress

if TYPE_CHECKING:
    from smolsum.results.evaluate.judging import JudgeOptions

LOCK = "evaluation.lock"


@dataclass(frozen=True)
class EvaluationJob:
    """What is evaluated, how, and the folder of the scores."""

    folder: Path
    label: str
    config: Config
    task: Task
    split: str
    prompts: Sequence[Prompt]
    measure: Callable[[Prompt, Rollout], dict[str, Any]]
    provenance: Mapping[str, Any]
    """fingerprints of `model`, `tokenizer` and `data` (by split), and the METEOR matcher"""
    retry: str
    """the command that continues"""
    policy: Policy
    """which `model` describes; its weights need not be read"""
    runs_dir: Path
    """the folder of all runs, in which completions of the same model may be"""
    decoding: DecodingSettings = GREEDY
    step: int | None = None
    """for a model of a run"""
    trained: str | None = None
    """for a stage of a run: the fingerprint of the stages so far, empty at the start"""
    whole: int = 0
    """prompts of the split, which may be more than these; 0: these are all"""
    left_out: str = ""
    """which of the data are no prompts, and why"""

    @cached_property
    def metric_settings(self) -> Mapping[str, Any]:
        """The settings that the task's metrics depend on."""
        return self.task.evaluation.measures(self.config)

    @property
    def made_from(self) -> dict[str, Any]:
        """What decides the completions and, as `task`, the metrics."""
        model = self.config.model
        asked = {
            "tokenizer": self.provenance["tokenizer"],
            **self.provenance["data"][self.split],
            "sampler": self.decoding.name,
            "max_new_tokens": self.config.sampling.max_new_tokens,
        }
        return {
            "model": model.path,
            "weights": self.provenance["model"]["weights"] if self.step is None else f"step {self.step}",
            "dtype": model.dtype,
            "quantize": model.quantize,
            **asked,
            TASK: {**self.metric_settings, **self.task.evaluation.code(self.config)},
            KEY: self._key(asked),
        }

    def _key(self, asked: Mapping[str, Any]) -> str:
        """Return the fingerprint of all that decides the completions, which all evaluations of a model share: place,
        machine and engine are no part of it. Empty for a checkpoint that only its run knows, and for a model behind an
        endpoint."""
        weights = str(self.provenance["model"]["weights"])
        if weights.startswith(BEHIND) or (self.step is not None and self.trained is None):
            return ""
        own = f"{weights} {self.trained}" if self.trained else weights
        architecture = [self.policy.config, sorted(self.policy.eos_ids), self.policy.dtype, self.config.model.quantize]
        return digest([own, architecture, asked, source_digest()])

    def kept_in(self) -> Path | None:
        """Return where completions of the same model may be; None where all are to be made."""
        return None if self.config.train.fresh_evaluations else self.runs_dir

    @property
    def weights(self) -> str:
        """Fingerprint of the model and of the stages that trained it."""
        return digest([self.provenance["model"], self.trained])

    @property
    def summary(self) -> dict[str, Any]:
        """What the summary says of the origin of its metrics."""
        return {
            "label": self.label,
            **({} if self.step is None else {"step": self.step}),
            "split": self.split,
            "sampler": self.decoding.name,
            **({} if self.trained is None else {WEIGHTS: self.weights}),
            **{key: self.provenance[key] for key in FIXED},
            TASK: self.metric_settings,
            "max_new_tokens": self.config.sampling.max_new_tokens,
            **({"left_out": self.left_out} if self.left_out else {}),
        }


@dataclass(frozen=True)
class Measured:
    """The result of an evaluation without a judge: each prompt's completions, the rows of `scores.jsonl`, and the
    summary with its metrics."""

    groups: Sequence[RolloutGroup]
    rows: list[dict[str, Any]]
    metrics: dict[str, float | None]
    summary: dict[str, Any]


def score(
    job: EvaluationJob, completer: Completer, *, showing: AbstractContextManager[ShowCount], note: Callable[[str], None]
) -> Measured:
    """Complete the prompts, measure and save; scores that exist of them all, which may be a judge's, are kept.

    The function of `showing` gets the count of completions as they come, `note` a sentence on those that another
    evaluation has made.
    """
    folder, task, samples, prompts = job.folder, job.task, job.decoding.samples, job.prompts
    with showing as show:
        counter = SamplingCounter(len(prompts) * samples, show)
        groups = obtain(
            folder, prompts, job.made_from, completer, job.retry, counter=counter, samples=samples,
            runs_dir=job.kept_in(), note=lambda text: note(f"{job.label}: {text}"),
        )  # fmt: skip
    task.evaluation.ask_ahead([(g.prompt, rollout) for g in groups for rollout in g.rollouts], job.config)
    measured = [[job.measure(g.prompt, rollout) for rollout in g.rollouts] for g in groups]
    split = {"split": job.split, "data": job.provenance["data"][job.split]["fingerprint"]}
    rows = [
        {"id": g.prompt.id, **split, "text": g.rollouts[0].text, **own[0]}
        for g, own in zip(groups, measured, strict=True)
    ]
    if samples > 1 and task.evaluation.aggregate_samples:
        every = [sample for own in measured for sample in own]
        metrics = task.evaluation.aggregate_samples(measured) | error_shares(task.evaluation.errors, every)
    else:
        metrics = task.evaluation.summarise(rows) | error_shares(task.evaluation.errors, rows)
    command = {} if job.step is not None else {"command": job.retry}
    summary = job.summary | describe_task(task, metrics) | command
    if len(prompts) < job.whole:
        summary |= {"whole": job.whole}
    if not has_scores(folder) or read_summary(folder).n < len(rows):
        write_scores(folder, rows, metrics, summary, job.retry)
    return Measured(groups, rows, metrics, summary)


def evaluate(target: Target, *, split: str, judging: JudgeOptions | None, quiet: bool, retry: str) -> Path:
    """Evaluate a target on a split; returns the folder with `scores.jsonl` and `summary.json`.

    `retry` is the command that continues. Raises the errors of loading, and the judge's failure once its other scores
    are saved.
    """
    busy, is_new = f"{target.folder} is being evaluated", not target.folder.exists()
    with (
        locked(target.folder / LOCK, busy, retry, hint="wait until it ends"),
        _removed_if_unused(target.folder, is_new),
    ):
        job, completer = _prepare(target, split, retry)
        showing = _metered(len(job.prompts) * target.decoding.samples, quiet=quiet)
        note = (lambda text: None) if quiet else console.narrate
        task, found = job.task, score(job, completer, showing=showing, note=note)
        rows, metrics, summary = found.rows, found.metrics, found.summary
        show_measured(task, metrics, len(rows), of=split, how=_means(task, target.decoding), retry=retry, quiet=quiet)
        failure = None
        if task.evaluation.criteria:
            from smolsum.results.evaluate.judging import JudgeJob, judge

            criteria, runs_dir = task.evaluation.criteria, Path(target.config.run.dir)
            result = judge(JudgeJob(target.folder, found.groups, criteria, retry, quiet, runs_dir), judging)
            judged, failure = result.judged, result.failure
            if judged is not None:
                columns, name = judged.columns(task.evaluation.criteria), judged.spec.name
                rows = [{**row, "judge": name, **columns[row["id"]]} for row in rows]
                metrics |= judged_summary(task.evaluation.criteria, rows) | error_shares(task.evaluation.errors, rows)
                summary |= {"judge": name, "judging": result.facts}
                again = retry if judging else with_judge(retry, judged.spec.model, judged.spec.rounds)
                show_judged(task.evaluation.criteria, metrics, result.facts, judged.missing, again, quiet=quiet)
        write_scores(target.folder, rows, metrics, summary, retry)
        if task.evaluation.criteria and "judge" not in summary and failure is None:
            show_unjudged(task.evaluation.criteria, retry, quiet=quiet)
    if failure is not None:
        raise failure
    return target.folder


def needs_sampling(job: EvaluationJob) -> bool:
    """Return whether other evaluations lack completions of a prompt."""
    key = job.made_from[KEY]
    kept, _ = find_kept(job.prompts, job.decoding.samples, key=key, runs_dir=job.kept_in(), but=job.folder)
    return len(kept) < len(job.prompts)


@contextmanager
def _metered(total: int, *, quiet: bool) -> Iterator[ShowCount]:
    with Meter("generating", total, quiet=quiet) as meter:
        yield lambda count: meter.to(count.done, count.speed, left_s=count.left_s)


def _prepare(target: Target, split: str, retry: str) -> tuple[EvaluationJob, Completer]:
    """Return the evaluation of a target, and the function that completes its prompts, which loads the weights."""
    config, task = target.config, TASKS[target.config.task.name]
    chosen, others = _splits(config, task, split)
    if target.variant and (own := sum(example.has_system for example in chosen.examples)):
        raise UsageError(
            f"{own} of {len(chosen.examples)} chats of the {split} split bring their own system message, so that the "
            f"prompt {target.variant!r} would not be sent",
            hint="smolsum eval MODEL measures the data as they are; or remove these messages from the data",
        )
    tokenizing = target.load(shapes_only=True)
    prompts, dropped = encode_prompts(tokenizing, task, chosen, config)
    too_long = f"{dropped} prompts longer than {config.data.max_input_tokens} tokens were dropped" if dropped else ""
    for warning in filter(None, [chosen.left_out, check_references({split: chosen}, {}), too_long]):
        console.warn(warning)
    matcher = meteor_matching(task, config, console.warn)
    provenance = {
        "model": target.identity(tokenizing),
        "tokenizer": tokenizer_digest(tokenizing.tokenizer),
        "data": {split: split_fingerprints(chosen, prompts)},
        "meteor": matcher,
    }

    def completer(
        missing: Sequence[Prompt], report: Callable[[SamplingProgress], None]
    ) -> Iterator[list[RolloutGroup]]:
        if target.api is not None:
            return complete_by_api(target.api, tokenizing, missing, config)
        policy: Policy = target.load()
        sample = complete_by_workers if config.workers.urls else complete
        version = target.checkpoint.step if target.checkpoint else 0
        return sample(policy, missing, config, report, version=version, decoding=target.decoding)

    job = EvaluationJob(
        folder=target.folder,
        label=target.label,
        config=config,
        task=task,
        split=split,
        prompts=prompts,
        measure=task.evaluation.measurer([chosen, *others], config),
        provenance=provenance,
        retry=retry,
        policy=tokenizing,
        runs_dir=Path(config.run.dir),
        decoding=target.decoding,
        step=target.step,
        left_out="; ".join(filter(None, [chosen.left_out, too_long])),
    )
    return job, completer


def _splits(config: Config, task: Task, split: str) -> tuple[Split, list[Split]]:
    """Return the split, and the others if the task needs them and the data has them."""
    chosen, others = task.prompts.load(config, split), []
    for name in SPLITS:
        if name != split and task.evaluation.needs_all_splits:
            with suppress(UsageError):  # data with one split is enough to evaluate
                others.append(task.prompts.load(config, name))
    return chosen, others


@contextmanager
def _removed_if_unused(folder: Path, is_new: bool) -> Iterator[None]:
    """Remove a new folder if the block fails before anything is in it but the lock."""
    try:
        yield
    except BaseException:
        if is_new and {file.name for file in folder.iterdir()} == {LOCK}:
            shutil.rmtree(folder)
        raise


def _means(task: Task, decoding: DecodingSettings) -> str:
    """Return how completions were drawn, and what the means are over."""
    if decoding.samples == 1:
        return decoding.name
    if task.evaluation.aggregate_samples:
        return f"{decoding.name}; means over all samples, intervals over examples"
    return f"{decoding.name}; means over the first sample of each"


class _NoCriteriaError(UsageError):
    """A judge by flag for a task that has nothing to judge."""


def evaluate_all(
    targets: Mapping[str, Callable[[], Target]],
    *,
    split: str,
    judging: JudgeOptions | None,
    skip: bool,
    quiet: bool,
    retry: str,
) -> None:
    """Evaluate each target and print its folder; with `skip` not those that have all scores.

    A failure does not stop the others, unless the judge is out of reach, too dear or has nothing to judge, which is the
    same for all. Raises SmolsumError with the names of the failed ones in the end.
    """
    failed: dict[str, SmolsumError] = {}
    by_flag = judging is not None and judging.by_flag
    for number, (name, make) in enumerate(targets.items(), start=1):
        try:
            target = make()
            task = TASKS[target.config.task.name]
            if by_flag and not task.evaluation.criteria:
                hint = "leave --judge and --second-judge out"
                raise _NoCriteriaError(f"task {task.name} has no criteria for a judge", hint=hint)
            if skip and _is_done(target, judging):
                folder = target.folder
            else:
                if judging is not None:
                    judging.cost.evaluations_left = len(targets) - number + 1
                if not quiet and len(targets) > 1:
                    console.narrate(f"evaluation {number} of {len(targets)}: {name}")
                if not quiet and target.chosen:
                    console.narrate(target.chosen)
                folder = evaluate(target, split=split, judging=judging, quiet=quiet, retry=retry)
        except (UnreachableError, InterruptedRun, CostLimitError, _NoCriteriaError):
            raise
        except SmolsumError as error:
            if len(targets) == 1:
                raise
            if error.message not in {one.message for one in failed.values()}:  # a model may fail with every prompt
                console.warn(f"{name}: {error.message}" + (f" ({error.hint})" if error.hint else ""))
            failed[name] = error
            continue
        console.data(str(folder))
    if failed:
        summary = f"{len(failed)} of {len(targets)} evaluations failed: {', '.join(failed)}"
        first = next(iter(failed.values()))
        # a wrong request fails every time
        wrong = all(isinstance(error, UsageError) for error in failed.values())
        hint = first.hint if wrong and first.hint else f"{retry} tries them again"
        raise (UsageError if wrong else SmolsumError)(summary, hint=hint) from first


def _is_done(target: Target, judging: JudgeOptions | None) -> bool:
    """Return whether the folder has all scores, and with `judging` all judgements of that judge."""
    if not has_scores(target.folder):
        return False
    criteria = TASKS[target.config.task.name].evaluation.criteria
    if judging is None or not criteria:
        return True
    summary = read_summary(target.folder)
    if summary.judge != judging.spec(criteria).name:
        return False
    if summary.judging is not None and summary.judging.missing:
        return False
    facts = summary.judging or Judging()
    known = [(one.get("model"), one.get("endpoint") or "") for one in (facts.second, *facts.others) if one]
    return all(not isinstance(one, Path) and (one.model, one.address) in known for one in judging.others)
