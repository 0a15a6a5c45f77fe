"""The evaluations that a training makes of its model on the test split: of the start, and after each stage.

A large model takes minutes for the split on a small machine, which the first step should not wait for. So its start is
evaluated on a sample first; the other prompts follow when training is done, with the weights that the run began with,
read again. In the end start and stages are measured on the same prompts.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from smolsum.config.sections import Config
from smolsum.console import duration
from smolsum.errors import UsageError
from smolsum.files import digest
from smolsum.grpo.keeper import RunKeeper
from smolsum.grpo.session import Session
from smolsum.grpo.setup.prepare import SMALL, Setup, load_shapes
from smolsum.policy.load import weights_hash
from smolsum.policy.lora import count_parameters
from smolsum.policy.weights import begin_again
from smolsum.results.evaluate.run import EvaluationJob, needs_sampling, score
from smolsum.results.evaluate.sampling import complete
from smolsum.runs.paths import RunPaths
from smolsum.runs.typed_json import has_scores, read_summary
from smolsum.types import Prompt, RolloutGroup, SamplingProgress

START = "start"
"""the label of the evaluation of the model that a run begins with"""
SAMPLE_SIZE = 16
"""prompts that take two cores ten seconds with 135 million parameters"""


def evaluate(session: Session, label: str, *, on_sample: bool = False) -> None:
    """Evaluate the session's model greedily on the test split into `eval/<label>-test`, or with `on_sample` on its
    `start_sample`, unless that or more is done already.

    The start is that of the run at any time: its weights are read again if the model has been trained since. Raises
    UsageError where they are no longer the same.
    """
    keeper = session.keeper
    if not isinstance(keeper, RunKeeper):
        return  # the first rank evaluates
    folder, job = keeper.paths.stage_evaluation(label), evaluation_job(session, keeper.paths, label)
    part = replace(job, prompts=start_sample(session.setup, session.config)) if on_sample else job
    if (read_summary(folder).n if has_scores(folder) else 0) < len(part.prompts):
        keeper.interruptible = True  # no step has to be finished: a stop ends it at once
        # where other evaluations have all completions nothing is sampled, so the whole split need not wait
        _evaluate(session, keeper, part if needs_sampling(job) else job)
        keeper.interruptible = False
    keeper.results[label] = read_summary(folder).metrics  # also where an earlier attempt made it


def start_sample(setup: Setup, config: Config) -> tuple[Prompt, ...]:
    """Return the prompts that the start is evaluated on before the first step, in the order of the data. They depend on
    the ids of the split alone."""
    every, wanted = setup.prompts["test"], config.train.start_prompts
    if wanted == "all" or (wanted == "auto" and count_parameters(setup.policy.model) < SMALL):
        return every
    size = SAMPLE_SIZE if wanted == "auto" else int(wanted)
    drawn = {prompt.id for prompt in sorted(every, key=lambda prompt: digest([START, prompt.id]))[:size]}
    return tuple(prompt for prompt in every if prompt.id in drawn)


def evaluation_job(session: Session, paths: RunPaths, label: str) -> EvaluationJob:
    """Return the evaluation of the whole split."""
    setup, prompts = session.setup, session.setup.prompts["test"]
    return EvaluationJob(
        folder=paths.stage_evaluation(label),
        label=label,
        config=session.config,
        task=setup.task,
        split="test",
        prompts=prompts,
        measure=setup.measure,
        provenance=setup.provenance,
        retry=paths.resume_command,
        policy=setup.policy,
        runs_dir=paths.root.parent,
        step=0 if label == START else session.at.step,
        trained=session.fingerprints.get(label, ""),
        whole=len(prompts),
    )


def _evaluate(session: Session, keeper: RunKeeper, job: EvaluationJob) -> None:
    """Make an evaluation, and an event on it."""
    setup, label, whole, n = session.setup, job.label, job.whole, len(job.prompts)
    of = f"{n} of the {whole} prompts" if n < whole else f"{whole} prompts"
    keeper.progress.phase(f"evaluating {of} of the test split: {label}")
    began, made = time.monotonic(), 0

    def generate(missing: Sequence[Prompt], report: Callable[[SamplingProgress], None]) -> Iterator[list[RolloutGroup]]:
        nonlocal made
        made = len(missing)
        if label == START and session.at.step:
            _begin_again(setup, session.config, keeper.paths)
        return complete(setup.policy, missing, session.config, report, version=job.step or 0)

    score(
        job, generate, showing=keeper.counting(f"evaluating {label}", "evaluating", label),
        note=lambda text: keeper.notify("kept_completions", text),
    )  # fmt: skip
    took = time.monotonic() - began
    later = "; the others follow once it is trained" if n < whole else ""
    keeper.writer.event(
        "evaluated", f"{label}: evaluated {of} of the test split in {duration(took)}{later}", step=session.at.step,
        # completions that were there before say nothing of the time that the next evaluation takes
        **({"seconds": round(took, 3), "share": made / whole} if made else {}),
    )  # fmt: skip


def _begin_again(setup: Setup, config: Config, paths: RunPaths) -> None:
    """Give the policy the weights that the run began with."""
    if weights_hash(setup.policy.path) != setup.provenance["model"]["weights"]:
        raise UsageError(
            f"the start cannot be evaluated to its end: {setup.policy.path} has other weights than when the run began",
            hint=f"put the model back; then {paths.resume_command} evaluates what is missing",
        )
    begin_again(setup.policy, load_shapes(config))
