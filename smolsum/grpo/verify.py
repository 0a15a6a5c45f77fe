"""Whether a run is what it says: its files by their digests, steps drawn at random by deriving them again, evaluations
by completing posts drawn at random again and by measuring all completions again."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from smolsum.config.checks import asking
from smolsum.config.stages import planned_steps
from smolsum.console import duration
from smolsum.errors import InterruptedRun, MachineError, SmolsumError, UnreachableError, UsageError
from smolsum.files import read_jsonl
from smolsum.grpo.difficulty import planned_kinds
from smolsum.grpo.evaluations import START, evaluation_job, start_sample
from smolsum.grpo.progress import Progress
from smolsum.grpo.replay import DAMAGED, Derived, Recorded, ReplayKeeper, derive, plain, same_machine, segments, unequal
from smolsum.grpo.resume import settings_of, span
from smolsum.grpo.session import Session
from smolsum.grpo.setup.prepare import Setup, load_shapes, prepare
from smolsum.policy.weights import begin_again, load_trained
from smolsum.results.evaluate.run import EvaluationJob, score
from smolsum.results.evaluate.sampling import complete
from smolsum.results.evaluate.storage import KEY, ORIGIN, read_generations
from smolsum.runs.digests import changes, run_digest
from smolsum.runs.evaluation_records import GENERATIONS, SCORES, SUMMARY, Generation
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import RunInfo
from smolsum.runs.typed_json import has_scores, read, read_object
from smolsum.types import Prompt, RolloutGroup

FACTS = ("model", "tokenizer", "data", "meteor", "settings", "corpus")
"""of run.json, what the model, the data and the settings have to give again"""
OTHERWISE = 0.2
"""of rollouts and greedy completions, the share that another machine may round to another token"""


@dataclass
class VerifiedPart:
    """A part of a run, what of it was verified, and a sentence on each difference."""

    name: str
    verified: str
    differences: list[str] = field(default_factory=list)


@dataclass
class Verification:
    """What was found out about a run."""

    digest: str
    """of all that it wrote, to be compared with a published one; empty where an earlier version made it"""
    seed: int
    """that steps and posts were drawn with"""
    exact: bool = True
    """whether this machine computes as the one that trained the run, so that everything has to be equal bit for bit"""
    drawn: list[int] = field(default_factory=list)
    """steps"""
    parts: list[VerifiedPart] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    """what could not be verified, and why"""
    interrupted: bool = False
    """whether the user stopped it, so that parts are missing or not complete"""

    @property
    def differences(self) -> list[str]:
        """Those of all parts."""
        return [text for part in self.parts for text in part.differences]


def verify(run: RunPaths, *, steps: int, posts: int, seed: int, progress: Progress) -> Verification:
    """Verify a run that is not being trained; `steps` and `posts` are how many are drawn, all where there are fewer.

    Raises the errors of loading, and UsageError for a run without settings or steps.
    """
    progress.phase("comparing the files with their digests")
    found = Verification(run_digest(run), seed)
    files = VerifiedPart("files", "by their digests" if found.digest else "checkpoints by their checksums")
    found.parts.append(files)
    if found.digest:
        files.differences, older = changes(run)
        found.unverified += [f"files: {text}" for text in older]
    else:
        found.unverified.append("files: there is no digests.jsonl: an earlier version made the run, or it was removed")
    try:
        _verify_contents(run, found, files, steps, posts, progress)
    except KeyboardInterrupt:
        found.interrupted = True
        there = {part.name for part in found.parts}
        missing = [f"eval/{folder.name}" for folder in sorted(run.evaluations.glob("*")) if has_scores(folder)]
        names = [name for name in ("origin", "steps", *missing) if name not in there]
        found.unverified.append(f"{', '.join(names) or 'the rest'}: interrupted")
    except (InterruptedRun, MachineError, UnreachableError):
        raise
    except SmolsumError as error:
        if not files.differences:
            raise
        files.differences.append(f"nothing more could be verified: {error}")  # so that those before are told
    return found


def _verify_contents(
    run: RunPaths, found: Verification, files: VerifiedPart, steps: int, posts: int, progress: Progress
) -> None:
    """Verify what the run was made from, its steps and its evaluations."""
    recorded = Recorded.read(run)
    files.differences += [f"the checkpoint of step {step} is damaged: {why}" for step, why in recorded.damaged.items()]
    config, info = settings_of(str(run.root), str(run.root.parent), {}), read(run.info, RunInfo)
    if not recorded.metrics:
        raise UsageError(f"{run.root} has no step yet", hint=run.resume_command)
    progress.phase(f"loading {config.model.path} and {config.data.path}")
    setup = prepare(config, info)
    config, found.exact = setup.config, same_machine(info, setup)
    plan = planned_steps(config, planned_kinds(config, setup.task, setup.prompts["train"]))
    session = Session(config, ReplayKeeper(progress, recorded, config, Derived()))
    session.begin(setup, plan, lambda root: None)
    then, now = (versions.get("smolsum", "") for versions in (info.versions, setup.provenance["versions"]))
    if then != now:
        found.unverified.append(f"fingerprints of stages: smolsum {then} made them, this is {now}")
    origin = _origin(session, setup, read_object(run.info), same_version=then == now) + _missing_steps(recorded)
    found.parts.append(VerifiedPart("origin", "model, data and settings", origin))
    _verify_steps(recorded, setup, plan, steps, found, progress)
    trained = {label: 0 if label == START else span(plan, label)[1] for label in (START, *config.stages)}
    for label, end in trained.items():
        if has_scores(run.stage_evaluation(label)):
            job = replace(evaluation_job(session, run, label), step=end)
            found.parts.append(_verify_evaluation(job, recorded, setup, posts, found, progress))
        elif end <= max(recorded.metrics):
            found.unverified.append(f"eval/{run.stage_evaluation(label).name}: it is not there")
    known = {run.stage_evaluation(label) for label in trained}
    for folder in sorted(run.evaluations.glob("*")):
        if folder not in known and has_scores(folder):
            found.unverified.append(f"eval/{folder.name}: smolsum eval made it, after the training")


def _origin(session: Session, setup: Setup, info: Mapping[str, Any], *, same_version: bool) -> list[str]:
    """Return how model, data and settings differ from what run.json says."""
    now, was = plain({key: setup.provenance[key] for key in FACTS}), {key: info.get(key) for key in FACTS}
    if not same_version:  # which is one of the settings
        return unequal({**now, "settings": None}, {**was, "settings": None}, "run.json", 0.0)
    fingerprints = unequal(session.fingerprints, info.get("fingerprints"), "run.json: fingerprint of stage", 0.0)
    return unequal(now, was, "run.json", 0.0) + fingerprints


def _missing_steps(recorded: Recorded) -> list[str]:
    """Return a sentence on steps that have no line, though later ones or a checkpoint do."""
    first, last = min(recorded.metrics), max(recorded.metrics)
    until = max(last, *recorded.checkpoints) if recorded.checkpoints else last
    missing = [step for step in range(first, until + 1) if step not in recorded.metrics]
    return [f"metrics.jsonl lacks {len(missing)} steps: {_some(missing)}"] if missing else []


def _some(named: Sequence[int | str]) -> str:
    return ", ".join(map(str, named[:5])) + (", …" if len(named) > 5 else "")


def _verify_steps(
    recorded: Recorded, setup: Setup, plan: Mapping[str, int], steps: int, found: Verification, progress: Progress
) -> None:
    """Derive steps drawn at random again, with those between them and the checkpoints before."""
    signals, stages = setup.task.rewards.signals, setup.config.stages.values()
    if asked := [name for stage in stages for name in asking(signals, stage.used_signals)]:
        names = " and ".join(dict.fromkeys(asked))
        found.unverified.append(f"steps: the reward {names} asks a model elsewhere, which may answer differently")
        return
    if setup.config.optimizer.matmul_precision == "medium" and not found.exact:
        found.unverified.append("steps: products in bfloat16 are the same only on the type of machine that trained")
        return
    every = sorted(recorded.metrics)
    found.drawn = sorted(random.Random(found.seed).sample(every, min(steps, len(every))))
    spans, lost = segments(plan, recorded, found.drawn)
    if lost:
        found.unverified.append(f"steps {_some(lost)}: no checkpoint before them, in their stage, is left")
    count = sum(until - after for after, until in spans.items())
    took = [seconds for row in recorded.metrics.values() if isinstance(seconds := row.get("perf/step_s"), float)]
    if count:
        ago = f", which took {duration(count * fmean(took))} when trained" if took else ""
        progress.note(f"deriving {count} of {len(every)} steps again{ago}")
        progress.plan([("step", count)], part="derived")
    derived = Derived()
    try:
        derive(recorded, setup, plan, spans, derived, progress, exact=found.exact)
    finally:  # what was derived until then counts
        found.unverified += derived.lost
        found.parts.append(_derived(derived, setup, found, of=len(every)))


def _derived(derived: Derived, setup: Setup, found: Verification, *, of: int) -> VerifiedPart:
    """Return what deriving steps of `of` has shown."""
    words = [f"{len(derived.steps)} of {of} derived {'bit for bit' if found.exact else 'within rounding'}"]
    if derived.same < (1 - (0 if found.exact else OTHERWISE)) * derived.resampled:
        unlike = f"{derived.resampled - derived.same} of {derived.resampled} rollouts did not come out again"
        if setup.config.workers.urls:
            found.unverified.append(f"{unlike}: their workers had another engine, or others sampled them")
        else:
            derived.differences.append(unlike)
    if derived.resampled:
        words.append(f"{derived.same} of {derived.resampled} rollouts came out again")
    if derived.checkpoints:
        words.append(f"{len(derived.checkpoints)} of the checkpoints")
    return VerifiedPart("steps", ", ".join(words), derived.differences)


def _verify_evaluation(
    job: EvaluationJob, recorded: Recorded, setup: Setup, posts: int, found: Verification, progress: Progress
) -> VerifiedPart:
    """Complete posts drawn at random again, and measure all completions again."""
    progress.phase(f"evaluating again: {job.label}")
    part = VerifiedPart(f"eval/{job.folder.name}", "nothing")
    try:
        _evaluate_again(job, recorded, setup, posts, found, part)
    except (InterruptedRun, MachineError, UnreachableError):
        raise
    except DAMAGED as error:
        part.differences.append(f"{part.name} cannot be measured again: {error or type(error).__name__}")
    return part


def _evaluate_again(
    job: EvaluationJob, recorded: Recorded, setup: Setup, posts: int, found: Verification, part: VerifiedPart
) -> None:
    written = {row.id: row for row in read_generations(job.folder)}
    prompts, scored = [prompt for prompt in job.prompts if prompt.id in written], read_object(job.folder / SUMMARY)["n"]
    if job.label == START and scored < len(prompts):  # the run was killed while it completed the others
        sampled = {prompt.id for prompt in start_sample(setup, setup.config)}
        prompts = [prompt for prompt in prompts if prompt.id in sampled]
    if len(prompts) < scored:
        part.differences.append(f"{part.name}/{GENERATIONS} lacks {scored - len(prompts)} of {scored} posts")
    if not prompts:
        return
    end = recorded.checkpoints.get(job.step or 0)
    if job.step == 0:
        begin_again(setup.policy, load_shapes(setup.config))
    elif end:
        load_trained(setup.policy, end.path)
    drawn = random.Random(f"{found.seed} {job.label}").sample(prompts, min(posts, len(prompts)))
    if job.step == 0 or end:
        same = _complete_again(drawn, written, setup, part, exact=found.exact)
        verified = f"{same} of {len(drawn)} completions came out again, "
    else:
        verified = ""
        found.unverified.append(
            f"{part.name}: the checkpoint of step {job.step}, whose completions it has, is not left"
        )
    if since := _measure_again(replace(job, prompts=prompts), part):
        found.unverified.append(f"{part.name}: no post has {', '.join(since)}, which this version measures")
    part.verified = f"{verified}{len(prompts)} measured"


def _complete_again(
    prompts: Sequence[Prompt], written: Mapping[str, Generation], setup: Setup, part: VerifiedPart, *, exact: bool
) -> int:
    """Complete these prompts with the present weights, and return how many come out token for token. On another
    machine a token that is as likely as another may differ."""
    groups = [group for batch in complete(setup.policy, prompts, setup.config, version=0) for group in batch]
    unlike = [g.prompt.id for g in groups if list(g.rollouts[0].token_ids) != written[g.prompt.id].token_ids]
    if len(unlike) > (0 if exact else len(groups) * OTHERWISE):
        part.differences.append(f"{part.name}: the model completes otherwise: {', '.join(unlike)}")
    return len(groups) - len(unlike)


def _measure_again(job: EvaluationJob, part: VerifiedPart) -> list[str]:
    """Measure the completions that were written down, and compare scores and summary. What a judge said stays as it
    is. Return the columns that no post has: those that an earlier version did not measure cannot be compared."""

    def never(missing: Sequence[Prompt], report: object) -> Iterator[list[RolloutGroup]]:
        raise SmolsumError(f"{part.name} lacks completions")

    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder) / job.folder.name
        again.mkdir()
        shutil.copyfile(job.folder / GENERATIONS, again / GENERATIONS)
        made = score(replace(job, folder=again), never, showing=nullcontext(lambda count: None), note=lambda text: None)
        origin = read_object(again / ORIGIN)
    scores = {row["id"]: row for row in read_jsonl(job.folder / SCORES)}
    rows = [plain(row) for row in made.rows]
    since = sorted(set().union(*rows) - set().union(*scores.values())) if scores else []
    if lacks := [row["id"] for row in rows if row["id"] not in scores]:
        part.differences.append(f"{part.name}/{SCORES} lacks {len(lacks)} of {len(rows)} posts: {_some(lacks)}")
    for row in rows:
        if then := scores.pop(row["id"], None):
            own = {key: value for key, value in row.items() if key not in since}
            part.differences += unequal(own, {key: then.get(key) for key in own}, f"{part.name}, {row['id']}", 0.0)
    part.differences += [f"{part.name}: {one} is no post of the data" for one in scores]
    summary = read_object(job.folder / SUMMARY)
    measured = {key: value for key, value in made.metrics.items() if key not in since or key in summary["metrics"]}
    now = plain({**made.summary, "metrics": measured})
    was = {key: summary.get(key) for key in now} | {"metrics": {k: summary["metrics"].get(k) for k in measured}}
    part.differences += unequal(now, was, f"{part.name}/{SUMMARY}", 0.0)
    written = read_object(job.folder / ORIGIN)
    part.differences += unequal(origin | {KEY: ""}, written | {KEY: ""}, f"{part.name}/{ORIGIN}", 0.0)
    return since
