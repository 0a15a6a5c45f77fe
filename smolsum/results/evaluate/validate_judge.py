"""`smolsum eval --validate-judge`: a judge is asked about texts whose quality is known (`planted.py`), and its answers
are measured (`judge_validation.py`).

Each text is scored by the task's criteria, as an evaluation does it; the originals in several rounds. Each original is
also compared with a damaged text and with its padded one, in both orders. All questions are known, and paid for, as
those of an evaluation: judgements.jsonl keeps the answers, and the same command asks for what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from smolsum import console
from smolsum.config.sections import Config
from smolsum.console import Meter
from smolsum.errors import SmolsumError, UsageError
from smolsum.files import locked
from smolsum.files import replace as write_file
from smolsum.llm.cache import content_key
from smolsum.llm.client import Call
from smolsum.llm.endpoints import Endpoint
from smolsum.results.evaluate.asking import Asking
from smolsum.results.evaluate.judge_validation import (
    VALIDATION,
    JudgeValidation,
    MeasuredShare,
    PairVerdicts,
    figures,
    find_validations,
    protocol_steps,
    shown,
    shown_percent,
)
from smolsum.results.evaluate.judgements import JudgeQuestion, JudgeSpec, Ledger
from smolsum.results.evaluate.judging import JudgeOptions
from smolsum.results.evaluate.planted import DAMAGE, ORIGINAL, PADDED, PlantedText, plant
from smolsum.rewards.judge import preference_call
from smolsum.runs.evaluation_records import Judgement
from smolsum.runs.paths import safe_name
from smolsum.runs.typed_json import encode, to_row
from smolsum.tasks import TASKS
from smolsum.types import COMPOSITE, Criterion, Prompt, Rollout, RolloutGroup

PREFERENCE = "preference"
"""the metric of a comparison: 1 where the first text wins, 0 where the second does, 0.5 where neither"""
DEFAULT_EXAMPLES = 50
LOCK = "evaluation.lock"
PROTOCOL = "Minimum Viable Validation Protocol (arXiv 2606.19544)"


@dataclass(frozen=True)
class ValidationJob:
    """What judges are validated on, and where the results go."""

    config: Config
    split: str
    examples: int
    seed: int
    retry: str
    quiet: bool
    name: str = ""
    """of the folder; empty: made of judge, task and split"""

    def folder(self, endpoint: Endpoint) -> Path:
        """Return the folder of a judge's validation."""
        own = f"judge-{safe_name(endpoint.model)}-{self.config.task.name}-{self.split}"
        return Path(self.config.run.dir) / (self.name or own)


def validate_judges(job: ValidationJob, options: JudgeOptions) -> None:
    """Validate the judge and the other ones, and print a folder for each. Raises UsageError for a task without criteria
    or data without references, and what asking a judge raises."""
    task = TASKS[job.config.task.name]
    if not task.evaluation.criteria:
        raise UsageError(f"task {task.name} has no criteria for a judge", hint="--task tldr, or a task with criteria")
    judges = [options.endpoint, *(one for one in options.others if isinstance(one, Endpoint))]
    if len(judges) <= len(options.others):
        raise UsageError(
            "labels are of completions, which --validate-judge has none of",
            hint="smolsum eval RUN --judge MODEL --second-judge FILE.csv compares a judge with labels",
        )
    split = task.prompts.load(job.config, job.split)
    usable = [example for example in split.examples if any(one.strip() for one in example.references)]
    if len(usable) < 2:
        raise UsageError(
            f"the {job.split} split has {len(usable)} examples with a reference, and faults are planted in references",
            hint="--split train, or data with references",
        )
    stride = max(1, len(usable) // job.examples)
    planted = plant(usable[::stride][: job.examples], seed=job.seed)
    for number, endpoint in enumerate(judges):
        options.cost.evaluations_left = len(judges) - number
        folder = job.folder(endpoint)
        with locked(folder / LOCK, f"{folder} is being written", job.retry, hint="wait until it ends"):
            found = _validate(job, replace(options, endpoint=endpoint), task.evaluation.criteria, planted)
            data = {"task": task.name, "split": job.split, "data": split.fingerprint}
            found = msgspec.structs.replace(found, **data)
            runs_dir = Path(job.config.run.dir)
            others = (one for path, one in find_validations(runs_dir, found.judge, found.prompts) if path != folder)
            data_sets = {found.data, *(one.data for one in others)}
            found = msgspec.structs.replace(found, protocol=protocol_steps(found, len(data_sets)))
            write_file(folder / VALIDATION, encode(JudgeValidation, to_row(found), indent=2), job.retry)
        _show(found, task.evaluation.criteria, quiet=job.quiet)
        console.data(str(folder))


def _validate(
    job: ValidationJob, options: JudgeOptions, criteria: Sequence[Criterion], planted: Sequence[PlantedText]
) -> JudgeValidation:
    endpoint, folder = options.endpoint, job.folder(options.endpoint)
    spec = replace(options.spec(criteria), rounds=1)
    originals = [_group(text) for text in planted if text.kind == ORIGINAL]
    scoring = spec.questions([_group(text) for text in planted], criteria)
    retesting = replace(spec, rounds=options.rounds).questions(originals, criteria)[len(originals) * len(criteria) :]
    comparing = list(_comparisons(spec, planted, criteria))
    questions = [*scoring, *comparing, *retesting]
    asking = Asking(endpoint, criteria, options.requests, options.cost, options.weighted)
    with (
        Ledger(folder, endpoint.name, job.retry, fresh=options.fresh) as ledger,
        Meter(f"validating {endpoint.model}", len(questions), quiet=job.quiet) as meter,
    ):
        ledger.take_from_cache(questions)
        asking.approve(questions, ledger)
        if (failure := asking.ask(questions, ledger, meter)) is not None:
            raise failure
        answers = [ledger.find(question.wanted) or question.wanted for question in questions]
    missing = [answer for answer in answers if answer.score is None]
    if len(missing) == len(answers):
        raise SmolsumError(
            f"the judge {endpoint.model} gave no answer at all: {(ledger.last(missing[0]) or missing[0]).error}",
            hint=f"{job.retry} asks again",
        )
    if missing:
        console.warn(f"{len(missing)} of {len(answers)} answers are missing, and in no figure; {job.retry} asks again")
    scores: dict[str, list[Judgement]] = {}
    for question, answer in zip(questions, answers, strict=True):
        if question.call is None:
            scores.setdefault(question.wanted.id, []).append(answer)
    pairs = _pairs(answer for answer in answers if answer.metric == PREFERENCE)
    found = figures(planted, criteria, options.rounds, scores, pairs)
    return msgspec.structs.replace(found, judge=spec.judge, prompts=dict(spec.prompts), missing=len(missing))


def _group(text: PlantedText) -> RolloutGroup:
    return RolloutGroup(replace(_prompt(text), id=text.id), (Rollout((), (), "stop", 0, "", 0, text.text),))


def _prompt(text: PlantedText) -> Prompt:
    example = text.example
    return Prompt(example.id, ({"role": "user", "content": example.source},), (), example.references, {})


def _comparisons(
    spec: JudgeSpec, planted: Sequence[PlantedText], criteria: Sequence[Criterion]
) -> Iterator[JudgeQuestion]:
    """Yield the comparisons of each original with one damaged text, the kinds taking turns, and with its padded one:
    round 1 shows the original first, round 2 last."""
    by_example: dict[str, dict[str, PlantedText]] = {}
    for text in planted:
        by_example.setdefault(text.example.id, {})[text.kind] = text
    for place, texts in enumerate(by_example.values()):
        possible = [kind for kind in DAMAGE if kind in texts]
        chosen = [possible[place % len(possible)]] if possible else []
        for kind in (*chosen, PADDED):
            shown = [texts[ORIGINAL].text, texts[kind].text]
            for order, pair in enumerate((shown, shown[::-1]), start=1):
                call = _comparison(texts[ORIGINAL], pair, criteria)
                key = content_key(spec.judge, PREFERENCE, call.prompt)
                wanted = Judgement(
                    texts[kind].id, order, PREFERENCE, spec.judge, key, None, error="not asked yet",
                    endpoint=spec.endpoint,
                )  # fmt: skip
                yield JudgeQuestion(wanted, {}, call)


def _comparison(original: PlantedText, pair: Sequence[str], criteria: Sequence[Criterion]) -> Call:
    call = preference_call(_prompt(original), pair, criteria)

    def winner(found: Mapping[str, Any]) -> tuple[float, str]:
        first, second = call.read(found)
        return (0.5 if first == second else float(first > second)), ""

    return replace(call, read=winner)


def _pairs(answers: Iterator[Judgement]) -> list[PairVerdicts]:
    """Return the pairs with an answer in both orders."""
    found: dict[str, dict[int, float]] = {}
    for answer in answers:
        if answer.score is not None:
            found.setdefault(answer.id, {})[answer.round] = answer.score
    return [
        PairVerdicts(key.rpartition("/")[2], orders[1], 1 - orders[2])
        for key, orders in found.items()
        if len(orders) == 2
    ]


def _show(found: JudgeValidation, criteria: Sequence[Criterion], *, quiet: bool) -> None:
    """Print the tables, and whether the judge passes the protocol."""
    failed = [step.step for step in found.protocol if not step.met]
    if not quiet:
        rows = [
            ["sensitivity: originals that pass", *_share(found.sensitivity)],
            ["specificity: damaged texts that fail", *_share(found.specificity)],
            ["paraphrases with the verdict of their original", *_share(found.same_verdict)],
            ["pairs in which the first text wins", *_share(found.first_wins)],
            ["pairs whose winner changes with the order", *_share(found.flipped)],
            ["padded texts that win over their original", *_share(found.padded_wins)],
        ]
        title = f"{found.judge} on {found.examples} references of {found.task}, {found.split}"
        console.table(["what", "share", "95 % interval", "examples"], rows, title=title)
        kappas = (("verdicts", found.kappa), ("pairs", found.pair_kappa))
        rows = [
            [name, str(one.n), shown_percent(one.agreed), shown(one.kappa), f"[{shown(one.low)}, {shown(one.high)}]"]
            for name, one in kappas
        ]
        console.table(["agreement of", "n", "raw", "kappa", "95 % interval"], rows, title="beyond chance")
        names = [*(c.name for c in criteria), COMPOSITE]
        rows = [
            [
                kind,
                *_share(one.passed)[:2],
                shown_percent(one.lowered.share),
                *(_signed(one.change.get(n)) for n in names),
            ]
            for kind, one in found.kinds.items()
        ]
        columns = ["kind", "pass", "95 % interval", "scored lower", *names]
        console.table(columns, rows, title="against the original: mean change of each score")
        steps = [["yes" if step.met else "no", step.step, step.found] for step in found.protocol]
        console.table(["met", "asked for", "found"], steps, title=PROTOCOL)
        if found.errors is not None and not found.errors.tells_apart:
            console.warn("it passes damaged texts as often as good ones: its share of passed completions says nothing")
    if found.passes:
        console.narrate(f"{found.judge} passes the {PROTOCOL}")
    else:
        console.warn(f"{found.judge} does not pass the {PROTOCOL}; not met: {'; '.join(failed)}")


def _share(one: MeasuredShare) -> list[str]:
    if one.share is None:
        return ["-", "-", "0"]
    return [shown_percent(one.share), f"[{shown_percent(one.low)}, {shown_percent(one.high)}]", str(one.n)]


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"
