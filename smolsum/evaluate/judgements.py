"""The questions to a judge about an evaluation, and the judgements in its folder.

judgements.jsonl   a JSON line for each (example, round, metric), failures too; only ever appended to, and the last line
                   of a question counts
the cache          `~/.cache/smolsum/judge`: a judge is never paid twice for the same texts
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
import xxhash

from smolsum.files import Lines, to_json
from smolsum.llm.cache import AnswerCache, content_key
from smolsum.llm.endpoints import Endpoint, name_with_address
from smolsum.runs.evaluation_records import Judgement
from smolsum.runs.record_io import read_lines, to_row
from smolsum.types import Criterion, RolloutGroup, Seen

JUDGEMENTS = "judgements.jsonl"


@dataclass(frozen=True)
class JudgeQuestion:
    """A judgement that is wanted, without its score, and the texts that the judge sees."""

    wanted: Judgement
    texts: Mapping[Seen, str]


@dataclass(frozen=True)
class JudgeSpec:
    """All that makes a judge's scores comparable: its name, the number of rounds, the fingerprint of each criterion's
    prompt, and its endpoint."""

    model: str
    rounds: int
    prompts: Mapping[str, str]
    endpoint: str = ""
    """URL without credentials"""

    @property
    def judge(self) -> str:
        """The judge's unique name: with the endpoint's address unless that is OpenAI's."""
        return name_with_address(self.model, self.endpoint)

    @property
    def name(self) -> str:
        """The judge of a scores file; scores of different names are not compared."""
        digest = xxhash.xxh3_64_hexdigest("".join(f"{k} {v}\n" for k, v in sorted(self.prompts.items())).encode())
        return f"{self.judge}, {self.rounds} {'round' if self.rounds == 1 else 'rounds'}, prompts {digest[:8]}"

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


def judge_spec(endpoint: Endpoint, rounds: int, criteria: Sequence[Criterion]) -> JudgeSpec:
    """Return the specification of a judge at an endpoint."""
    from smolsum.evaluate import geval

    async def prompts() -> dict[str, str]:
        return {c.name: await geval.fingerprint(c) for c in criteria}

    return JudgeSpec(endpoint.model, rounds, asyncio.run(prompts()), endpoint.address)


class Ledger:
    """The judgements of one evaluation by one judge: the known ones, and the file and cache for new ones."""

    def __init__(self, folder: Path, judge: str, remedy: str, *, fresh: bool = False) -> None:
        """Read the judgements by a judge, known as `JudgeSpec.judge`; `fresh` ignores what other evaluations paid for.
        Raises SmolsumError for a damaged file."""
        self._path, self._remedy, self._stack = folder / JUDGEMENTS, remedy, ExitStack()
        self.usage = {"calls": 0, "input_tokens": 0, "output_tokens": 0}
        """of all lines"""
        self._known = dict[str, Judgement]()
        """the last judgement of each question, by key and example"""
        for judgement in read_lines(self._path, Judgement, hint="remove that line; its question is asked again"):
            if judgement.judge == judge and not (fresh and judgement.score is not None and not judgement.attempts):
                self._note(judgement)
        own = {j.key: j for j in self._known.values() if j.score is not None} if fresh else None
        self._cache = AnswerCache("judge", judge, Judgement, remedy, known=own)

    def __enter__(self) -> Self:
        self._lines = self._stack.enter_context(Lines(self._path, self._remedy))
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
