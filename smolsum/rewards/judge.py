"""The signals `judge` and `preference`, which any task can reward: a model behind an endpoint reads the completions.

`judge` scores each completion by the task's criteria, or by a rubric of the user. `preference` compares the completions
of a prompt with each other in one question, as ART's RULER does: it scores within a group only, as an advantage does.
Each question is paid for once (`~/.cache/smolsum/reward-judge`), an outage is waited for, and a question that fails has
no value: its rollout, or its group, teaches nothing. Settings are in `[judge]`; the endpoint is that of an evaluation's
judge.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from smolsum.config.checks import judged_by
from smolsum.config.sections import Config, JudgeConfig
from smolsum.errors import UsageError
from smolsum.rewards.signal import Facts, Values
from smolsum.types import Criterion, Prompt, RolloutGroup, Seen

if TYPE_CHECKING:
    from smolsum.llm.batch import BatchClient
    from smolsum.llm.client import Call

MAX_SCORE = 10
NOTHING = "(no text)"
"""stands for an empty completion"""
TITLES: dict[Seen, str] = {"source": "Input", "reference": "Expected Output"}
SCORE = """{shown}Actual Output:
<text>
{text}
</text>

Score the Actual Output by each of these criteria.

{criteria}

Give each criterion a whole number from 0 (worst) to {most} (best). Reply with JSON: {{"scores": {example}}}."""
PREFER = """{shown}Below are {count} texts. Each is an Actual Output for the same Input.

{texts}

Compare them with each other by these criteria.

{criteria}

Give each text a score from 0 to 1, so that a better one has a higher score, and equal ones the same. Reply with JSON:
{{"scores": [{{"text": 1, "score": 0.5}}, …]}}, with every number from 1 to {count} once."""
JUDGED = {
    "judge": Facts(range="[0, 1]", meaning="a judge's mean score over the criteria"),
    "preference": Facts(range="[0, 1]", meaning="a judge's score, compared with the others of the group"),
}


@dataclass(frozen=True)
class JudgeSignal:
    """A signal that asks the judge of `[judge]`: PxG values in [0, 1], None where it gave no usable answer."""

    kind: Literal["judge", "preference"]
    criteria: Callable[[Config], Sequence[Criterion]]
    """those of the task"""
    asks_judge: ClassVar[bool] = True

    @property
    def facts(self) -> Facts:
        """What is known of it."""
        return JUDGED[self.kind]

    def __call__(self, groups: Sequence[RolloutGroup], config: Config) -> Values:
        """Ask about all completions at once. Raises UnreachableError after an outage of `judge.wait_s`, or once
        `judge.max_calls` or `judge.max_cost` are used up, and UsageError for a wrong key or model."""
        chosen = judged_by(config.judge, self.criteria(config))
        client = client_of(config.judge)
        return _preferences(groups, chosen, client) if self.kind == "preference" else _scores(groups, chosen, client)


def judge_signals(criteria: Callable[[Config], Sequence[Criterion]]) -> dict[str, JudgeSignal]:
    """Return both signals, of a task with these criteria."""
    return {"judge": JudgeSignal("judge", criteria), "preference": JudgeSignal("preference", criteria)}


def check_endpoint(config: Config, dollars: Callable[[str, int, int], float | None]) -> None:
    """Check that the judge can be asked, without a request, where a stage rewards one of the signals. Raises UsageError
    without a key or URL, and for a limit of cost where `dollars` does not know what the model's tokens cost."""
    judge = config.judge
    if not judge.model:
        return
    budget = client_of(judge).budget
    if judge.max_cost:
        of_input, of_output = dollars(judge.model, 1, 0), dollars(judge.model, 0, 1)
        if of_input is None or of_output is None:
            raise UsageError(
                f"judge.max_cost cannot hold: the price of {judge.model} is not known",
                hint="leave it out (--max-cost); --set judge.max_calls=1000 limits the requests",
            )
        budget.dollars, budget.price = judge.max_cost, (of_input, of_output)


@lru_cache(maxsize=4)
def client_of(settings: JudgeConfig) -> BatchClient:
    """Return the client of a run, with one budget of requests in this process. Raises UsageError without a key or
    URL."""
    from smolsum.llm.batch import BatchClient  # loads an HTTP client
    from smolsum.llm.endpoints import REWARD_JUDGE, find_endpoint
    from smolsum.llm.request_policy import RequestBudget, RequestPolicy

    return BatchClient(
        find_endpoint(settings.model, os.environ, REWARD_JUDGE),
        RequestPolicy(settings.attempts, settings.deadline_s, concurrency=settings.concurrency),
        wait_s=settings.wait_s,
        budget=RequestBudget(settings.max_calls, "judge.max_calls"),
    )


def _scores(groups: Sequence[RolloutGroup], criteria: Sequence[Criterion], client: BatchClient) -> Values:
    """Return the mean over the criteria of the judge's scores of each completion."""
    calls = [_score_call(group, rollout.text, criteria) for group in groups for rollout in group.rollouts]
    answers = iter(client.ask(calls))
    return [[next(answers) for _ in group.rollouts] for group in groups]


def _preferences(groups: Sequence[RolloutGroup], criteria: Sequence[Criterion], client: BatchClient) -> Values:
    from smolsum.llm.ranking import ranked

    def question(n: int, order: Sequence[str]) -> Call:
        return preference_call(groups[n].prompt, order, criteria)

    found = ranked(client, [[rollout.text for rollout in group.rollouts] for group in groups], question)
    return [
        list(scores) if scores is not None else [None] * len(group.rollouts)
        for scores, group in zip(found, groups, strict=True)
    ]


def preference_call(prompt: Prompt, texts: Sequence[str], criteria: Sequence[Criterion]) -> Call:
    """Ask for a comparison of completions of a prompt, in this order; the answer is a score in [0, 1] for each."""
    from smolsum.llm.ranking import ranking_call

    shown = "\n\n".join(f"<text number={m}>\n{text or NOTHING}\n</text>" for m, text in enumerate(texts, start=1))
    question = PREFER.format(shown=_shown(prompt, criteria), count=len(texts), texts=shown, criteria=_listed(criteria))
    return ranking_call(question, "text", len(texts))


def _score_call(group: RolloutGroup, text: str, criteria: Sequence[Criterion]) -> Call:
    from smolsum.llm.client import Call
    from smolsum.llm.ranking import object_schema

    names = [one.name for one in criteria]
    prompt = SCORE.format(
        shown=_shown(group.prompt, criteria),
        text=text or NOTHING,
        criteria=_listed(criteria),
        most=MAX_SCORE,
        example="{" + ", ".join(f'"{name}": 5' for name in names) + "}",
    )
    schema = object_schema(scores=object_schema(**{name: {"type": "integer"} for name in names}))
    return Call(prompt, schema, lambda found: _mean_score(found, names))


def _mean_score(found: Mapping[str, Any], names: Sequence[str]) -> float:
    """Return the mean score in [0, 1]. Raises BadAnswer unless each criterion has a number from 0 to 10."""
    from smolsum.llm.client import BadAnswer

    scores = found.get("scores")
    values = [scores.get(name) if isinstance(scores, Mapping) else None for name in names]
    for name, value in zip(names, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SCORE:
            raise BadAnswer(f"no score of {name} from 0 to {MAX_SCORE}, but {value!r:.40}")
    return fmean(float(value) for value in values if value is not None) / MAX_SCORE


def _listed(criteria: Sequence[Criterion]) -> str:
    return "\n\n".join("\n".join([f"{one.name}:", *(f"- {step}" for step in one.steps)]) for one in criteria)


def _shown(prompt: Prompt, criteria: Sequence[Criterion]) -> str:
    """Return the texts that any of the criteria sees, apart from the completion."""
    texts: dict[Seen, str] = {"source": prompt.source, "reference": "\n\n".join(prompt.references)}
    seen = [one for one in texts if texts[one] and any(one in criterion.sees for criterion in criteria)]
    return "".join(f"{TITLES[one]}:\n<{one}>\n{texts[one]}\n</{one}>\n\n" for one in seen)
