"""The questions to a judge about an evaluation, the judgements in its folder, and the numbers made of them: an
example's columns, the means of a split, the noise between rounds, the agreement of two judges, and what a summary says.

judgements.jsonl   a JSON line for each (example, round, metric), failures too; only ever appended to, and the last line
                   of a question counts
the cache          `~/.cache/smolsum/judge`: a judge is never paid twice for the same texts
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Self

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from smolsum.files import Lines, finite, to_json
from smolsum.llm.cache import AnswerCache, content_key
from smolsum.llm.client import Call
from smolsum.llm.endpoints import Endpoint, name_with_address
from smolsum.runs.evaluation_records import Judgement
from smolsum.runs.typed_json import read_lines, to_row
from smolsum.stats.agreement import cohens_kappa, krippendorff_alpha
from smolsum.types import COMPOSITE, PASS_RATE, PASSED, Criterion, RolloutGroup, Seen

JUDGEMENTS = "judgements.jsonl"
LABELS = "labels of "
"""begins what stands for a prompt where a person has labelled"""


@dataclass(frozen=True)
class JudgeQuestion:
    """A judgement that is wanted, without its score, and the texts that the judge sees."""

    wanted: Judgement
    texts: Mapping[Seen, str]
    call: Call | None = None
    """what is asked where that is no criterion's question"""


@dataclass(frozen=True)
class JudgeSpec:
    """All that makes a judge's scores comparable: its name, the number of rounds, the fingerprint of each criterion's
    prompt, and its endpoint."""

    model: str
    rounds: int
    prompts: Mapping[str, str]
    endpoint: str = ""
    """URL without credentials"""
    weighted: bool = False
    """whether scores are weighted by the probabilities of their tokens; part of the prompts' fingerprints"""
    until: float | None = None
    """half the width of the composite's interval at which no more rounds were added; None: all were asked for"""
    most: int = 0
    """rounds that there could have been, with `until`"""

    @property
    def by_person(self) -> bool:
        """Whether a person has labelled: what has no label is then not missing."""
        return all(prompt.startswith(LABELS) for prompt in self.prompts.values())

    @property
    def judge(self) -> str:
        """The judge's unique name: with the endpoint's address unless that is OpenAI's."""
        return name_with_address(self.model, self.endpoint)

    @property
    def name(self) -> str:
        """The judge of a scores file; scores of different names are not compared."""
        digest = xxhash.xxh3_64_hexdigest("".join(f"{k} {v}\n" for k, v in sorted(self.prompts.items())).encode())
        rounds = f"{self.rounds} {'round' if self.rounds == 1 else 'rounds'}"
        if self.until is not None:  # how many it took is no part: a later round changes no score of an earlier one
            rounds = f"up to {self.most} rounds until ±{self.until:g}"
        return f"{self.judge}, {rounds}, prompts {digest[:8]}"

    def questions(self, groups: Sequence[RolloutGroup], criteria: Sequence[Criterion]) -> list[JudgeQuestion]:
        """Return all questions about each prompt's first completion, a whole round before the next, so that a part of
        them is of use too. Several references stand below each other."""
        questions = []
        for number in range(1, self.rounds + 1):
            for prompt, rollout in ((group.prompt, group.rollouts[0]) for group in groups):
                texts: dict[Seen, str] = {
                    "source": prompt.source,
                    "completion": rollout.text,
                    "reference": "\n\n".join(prompt.references),
                }
                for c in criteria:
                    shown = {seen: texts[seen] for seen in c.sees}
                    key = content_key(self.judge, self.prompts[c.name], sorted(shown.items()), number)
                    wanted = Judgement(
                        prompt.id, number, c.name, self.judge, key, None, error="not asked yet", endpoint=self.endpoint
                    )
                    questions.append(JudgeQuestion(wanted, shown))
        return questions


def judge_spec(
    endpoint: Endpoint,
    rounds: int,
    criteria: Sequence[Criterion],
    *,
    weighted: bool = False,
    until: float | None = None,
) -> JudgeSpec:
    """Return the specification of a judge at an endpoint."""
    from smolsum.results.evaluate import geval

    async def prompts() -> dict[str, str]:
        return {c.name: await geval.fingerprint(c, weighted=weighted) for c in criteria}

    most = 0 if until is None else rounds
    return JudgeSpec(endpoint.model, rounds, asyncio.run(prompts()), endpoint.address, weighted, until, most)


class Ledger:
    """The judgements of one evaluation by one judge: the known ones, and the file and cache for new ones."""

    def __init__(self, folder: Path, judge: str, retry: str, *, fresh: bool = False) -> None:
        """Read the judgements by a judge, known as `JudgeSpec.judge`; `fresh` ignores what other evaluations paid for.
        Raises SmolsumError for a damaged file."""
        self._path, self._retry, self._stack = folder / JUDGEMENTS, retry, ExitStack()
        self.usage = {"calls": 0, "input_tokens": 0, "output_tokens": 0}
        """of all lines"""
        self._known = dict[str, Judgement]()
        """the last judgement of each question, by key and example"""
        for judgement in read_lines(self._path, Judgement, hint="remove that line; its question is asked again"):
            # a score without attempts came from the cache
            if judgement.judge == judge and not (fresh and judgement.score is not None and not judgement.attempts):
                self._note(judgement)
        own = {j.key: j for j in self._known.values() if j.score is not None} if fresh else None
        self._cache = AnswerCache("judge", judge, Judgement, retry, known=own)

    def __enter__(self) -> Self:
        self._lines = self._stack.enter_context(Lines(self._path, self._retry))
        self._stack.enter_context(self._cache)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def last(self, wanted: Judgement) -> Judgement | None:
        """Return the last judgement for this question in this evaluation, which may be a failure."""
        return self._known.get(wanted.key + wanted.id)

    def find(self, wanted: Judgement) -> Judgement | None:
        """Return the judgement with a score: from this evaluation, or for the same content from elsewhere."""
        found = (self.last(wanted), self._cache.known.get(wanted.key))
        return next((j for j in found if j is not None and j.score is not None), None)

    def failed(self, question: JudgeQuestion) -> bool:
        """Return whether the question failed before, while the judge scored others."""
        last = self.last(question.wanted)
        return last is not None and last.score is None and any(j.score is not None for j in self._known.values())

    def take_from_cache(self, questions: Sequence[JudgeQuestion]) -> None:
        """Add the scores that were paid for elsewhere."""
        for wanted in (question.wanted for question in questions):
            cached = self.find(wanted)
            if cached and cached is not self.last(wanted):
                free = {"attempts": 0, "seconds": 0.0, "input_tokens": 0, "output_tokens": 0}
                self._write(msgspec.structs.replace(cached, id=wanted.id, **free))

    def record(self, judgement: Judgement) -> None:
        """Add an outcome."""
        self._write(judgement)
        if judgement.score is not None and judgement.attempts:
            self._cache.add(judgement)

    def _write(self, judgement: Judgement) -> None:
        self._lines.append(to_json(to_row(judgement)))
        self._note(judgement)

    def _note(self, judgement: Judgement) -> None:
        self._known[judgement.key + judgement.id] = judgement
        self.usage["calls"] += judgement.attempts
        self.usage["input_tokens"] += judgement.input_tokens
        self.usage["output_tokens"] += judgement.output_tokens


@dataclass(frozen=True)
class Judged:
    """All judgements of an evaluation by one judge, by example."""

    spec: JudgeSpec
    judgements: Mapping[str, Sequence[Judgement]]
    missing: Sequence[Judgement]
    """the questions without a score, each with the reason"""
    usage: Mapping[str, float | int | None]
    """calls and tokens of all times that it was asked, dollars with known prices, scores from the cache"""

    def columns(self, criteria: Sequence[Criterion]) -> dict[str, dict[str, Any]]:
        """Return the judged columns of each example, as in a scores file."""
        return {key: judged_columns(criteria, self.spec.rounds, found) for key, found in self.judgements.items()}


def judge_facts(criteria: Sequence[Criterion], judged: Judged, *others: Judged) -> dict[str, Any]:
    """Return what a summary says of a judge: its specification, usage, missing judgements and noise; the same of the
    other judges, as `second` and, from the third on, `others`, each with its `agreement` with this one over the
    examples' means and the `kappa` of their verdicts; and the `alpha` of all judges together."""
    spec = judged.spec
    rest = [other for other in others if other.spec.judge != spec.judge]
    compared = [judge_facts(criteria, other) | _compared(criteria, judged, other) for other in rest]
    return {
        **_own_facts(criteria, judged),
        **({"second": compared[0]} if compared else {}),
        **({"others": compared[1:]} if compared[1:] else {}),
        **({"alpha": _alpha(criteria, [judged, *rest])} if len(rest) > 1 else {}),
    }


def _own_facts(criteria: Sequence[Criterion], judged: Judged) -> dict[str, Any]:
    spec, columns = judged.spec, judged.columns(criteria)
    return {
        "model": spec.model,
        "endpoint": spec.endpoint,
        "rounds": spec.rounds,
        **({} if spec.until is None else {"until": spec.until, "most_rounds": spec.most}),
        **({"weighted": True} if spec.weighted else {}),
        "prompts": dict(spec.prompts),
        "thresholds": {c.name: c.threshold for c in criteria},
        "usage": dict(judged.usage),
        "missing": [
            {"id": j.id, "round": j.round, "metric": j.metric, "error": j.error, "attempts": j.attempts}
            for j in judged.missing
        ],
        "noise": {name: judge_noise([row["rounds"][name] for row in columns.values()]) for name in _names(criteria)},
    }


def _names(criteria: Sequence[Criterion]) -> tuple[str, ...]:
    return (*(c.name for c in criteria), COMPOSITE)


def _compared(criteria: Sequence[Criterion], first: Judged, other: Judged) -> dict[str, Any]:
    """Return how another judge agrees with the first: in scores and, beyond chance, in what passes."""
    ours, theirs = first.columns(criteria), other.columns(criteria)
    agreed = {
        name: agreement(*({key: row[name] for key, row in rows.items()} for rows in (ours, theirs)))
        for name in _names(criteria)
    }
    both = [(ours[key][PASSED], theirs[key][PASSED]) for key in ours.keys() & theirs.keys()]
    known = sorted((bool(a), bool(b)) for a, b in both if a is not None and b is not None)
    return {"agreement": agreed, "kappa": finite(asdict(cohens_kappa([a for a, _ in known], [b for _, b in known])))}


def _alpha(criteria: Sequence[Criterion], judges: Sequence[Judged]) -> dict[str, float | None]:
    """Return Krippendorff's alpha of all judges for each criterion and the composite."""
    columns = [judged.columns(criteria) for judged in judges]
    keys = list(columns[0])
    table = {
        name: np.array([[rows.get(key, {}).get(name) for key in keys] for rows in columns], dtype=np.float64)
        for name in _names(criteria)
    }
    return {name: finite(krippendorff_alpha(scores)) for name, scores in table.items()}


def judged_columns(criteria: Sequence[Criterion], rounds: int, judgements: Iterable[Judgement]) -> dict[str, Any]:
    """Return one example's columns: each criterion's mean over its rounds, their sum as `composite`, the share of
    rounds in which all criteria reach their thresholds as `pass_rate`, whether that is most of them as `passed`, and
    every score in `rounds`.

    Missing scores are in no mean, and None in `rounds`; without any score a mean is None. A composite needs all
    criteria; a round counts for `pass_rate` only if it has all its scores.
    """
    found = {(j.metric, j.round): j.score for j in judgements}
    scores = {c.name: [found.get((c.name, number)) for number in range(1, rounds + 1)] for c in criteria}
    means = {name: _mean(row) for name, row in scores.items()}
    passes: list[float | None] = []
    sums: list[float | None] = []
    for number in range(rounds):
        row = [scores[c.name][number] for c in criteria]
        known = [score for score in row if score is not None]
        complete = len(known) == len(row)
        sums.append(sum(known) if complete else None)
        # a margin, as scores are tenths, which floats do not represent exactly
        reached = [s >= c.threshold - 5e-10 for s, c in zip(known, criteria, strict=False)]
        passes.append(float(all(reached)) if complete else None)
    values = [mean for mean in means.values() if mean is not None]
    pass_rate = _mean(passes)
    return {
        **means,
        COMPOSITE: sum(values) if len(values) == len(criteria) else None,
        PASS_RATE: pass_rate,
        PASSED: None if pass_rate is None else float(pass_rate > 0.5),
        "rounds": {**scores, COMPOSITE: sums, PASSED: passes},
    }


def judged_summary(criteria: Sequence[Criterion], rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the mean over the examples of every judged column, and its standard error as `<column>/se`; None with no
    value, or for a standard error with only one."""
    summary: dict[str, float | None] = {}
    for name in (*(c.name for c in criteria), COMPOSITE, PASS_RATE):
        values = [row[name] for row in rows if row[name] is not None]
        summary[name] = fmean(values) if values else None
        summary[f"{name}/se"] = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return summary


def judge_noise(rounds: Sequence[Sequence[float | None]]) -> dict[str, float | int | None]:
    """Return the spread of a metric between rounds, `rounds` holding one list of scores an example.

    `round_sd` is the standard deviation of a score within its example; `icc` is ICC(1,1), the share of all variance
    that is between examples, and `icc_mean` is ICC(1,k), that of the mean of the k rounds (Shrout and Fleiss, 1979;
    one-way, as the rounds of different examples have nothing in common). Examples with a missing round are left out;
    None with fewer than two rounds or examples, and for an ICC without variance.
    """
    whole = [[score for score in row if score is not None] for row in rounds]
    k = max((len(row) for row in rounds), default=0)
    scores = np.array([row for row in whole if len(row) == k and k > 1], dtype=np.float64)
    n = len(scores)
    if n < 2:
        return {"n": n, "round_sd": None, "icc": None, "icc_mean": None}
    between = k * float(scores.mean(axis=1).var(ddof=1))
    within = float(scores.var(axis=1, ddof=1).mean())
    total = between + (k - 1) * within
    return {
        "n": n,
        "round_sd": math.sqrt(within),
        "icc": (between - within) / total if total > 0 else None,
        "icc_mean": (between - within) / between if between > 0 else None,
    }


def agreement(first: Mapping[str, float | None], second: Mapping[str, float | None]) -> dict[str, float | int | None]:
    """Return how two judges' scores of the same examples, by id, agree: Pearson's and Spearman's correlation, the mean
    difference second - first and its standard deviation. Examples that one of them lacks are left out; None with too
    few examples, and for a correlation without variance."""
    pairs = [
        (score, other) for key, score in first.items() if score is not None and (other := second.get(key)) is not None
    ]
    values: NDArray[np.float64] = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    a, b = values.T
    n = len(pairs)
    found: dict[str, float | int | None] = {
        "n": n,
        "pearson": None,
        "spearman": None,
        "difference": float((b - a).mean()) if n else None,
        "difference_sd": float((b - a).std(ddof=1)) if n > 1 else None,
    }
    if n > 2 and np.ptp(a) > 0 and np.ptp(b) > 0:
        from scipy import stats

        found["pearson"] = float(stats.pearsonr(a, b).statistic)
        found["spearman"] = float(stats.spearmanr(a, b).statistic)
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
