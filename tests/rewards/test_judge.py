"""The signals `judge` and `preference`, over real HTTP: what is asked, paid, kept and missing."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import stamina
from support.judge_server import JudgeServer, Reply, answer, failure, serving
from support.refusals import refuses
from support.rule_judge import rules_served

from smolsum.config.resolve import resolve
from smolsum.config.sections import Config, JudgeConfig
from smolsum.errors import UnreachableError
from smolsum.rewards.combine import score_and_combine
from smolsum.rewards.judge import client_of
from smolsum.tasks import TASKS
from smolsum.types import Prompt, Rollout, RolloutGroup

POST = "My brother Noah asked Emma for $300 last Friday. He wants to repair the garage in Boston. " * 3
GOOD = "Noah asked Emma for $300 to repair the garage."
BAD = "the the the the elephants the elephants"


def group(*texts: str, source: str = POST) -> RolloutGroup:
    """A prompt with these completions."""
    prompt = Prompt("p", ({"role": "user", "content": source},), (1,), ("a reference",), {})
    return RolloutGroup(prompt, tuple(Rollout((1,), (0.0,), "stop", 0, "w", n, text) for n, text in enumerate(texts)))


def settings(reward: str = "judge", **judge: object) -> Config:
    sets = [f"judge.{key}={value}" for key, value in judge.items()]
    return resolve(TASKS, strategy="included", reward=reward, sets=sets).config


def scores(signal: str, groups: list[RolloutGroup], config: Config) -> list[list[float | None]]:
    found, totals = score_and_combine(groups, {signal: 1.0}, config, TASKS[config.task.name].rewards.signals)
    assert totals == found[signal]
    return found[signal]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is known from before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    client_of.cache_clear()


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with rules_served() as url:
        monkeypatch.setenv("SMOLSUM_JUDGE_URL", url)
        yield


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize("signal", ["judge", "preference"])
@pytest.mark.parametrize("rubric", [{}, {"rubric": "Plain words?"}])
def test_a_good_text_is_worth_more(signal: str, rubric: dict[str, str]) -> None:
    """By the rules, of a summary and of noise; equal texts are worth the same, and an empty one can be judged. A
    rubric, which no rule reads, is answered by clarity."""
    (found,) = scores(signal, [group(GOOD, BAD, GOOD, "")], settings(signal, model="rules", **rubric))
    good, bad, again, empty = (-1.0 if value is None else value for value in found)
    assert 1 >= good == again > 0.7 > bad >= 0
    assert good > empty >= 0


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    """A judge that counts words, without pauses between attempts."""
    with serving(mischief=counted) as server, stamina.set_testing(True, attempts=2, cap=True):
        monkeypatch.setenv("SMOLSUM_JUDGE_URL", server.url)
        yield server


def counted(prompt: str, before: int) -> Reply:
    """Scores by the number of words, up to ten."""
    if shown := re.findall(r"<text number=(\d+)>\n(.*?)\n</text>", prompt, re.S):
        return answer(json.dumps({"scores": [{"text": int(n), "score": words(text) / 10} for n, text in shown]}))
    (text,) = re.findall(r"Actual Output:\n<text>\n(.*?)\n</text>", prompt, re.S)
    return answer(json.dumps({"scores": dict.fromkeys(asked_by(prompt), words(text))}))


def words(text: str) -> int:
    return min(10, len(text.split()))


def asked_by(prompt: str) -> list[str]:
    """The names of the criteria that a prompt lists."""
    return re.findall(r"^(\w+):\n- ", prompt, re.M)


FAST = {"model": "judge-a", "attempts": 2, "deadline_s": 2.0, "wait_s": 0.3}


def test_each_question_is_paid_for_once(served: JudgeServer) -> None:
    """One for each different completion of a prompt, with the post, and every criterion of the task; the same text in
    the next step is known, in another process too."""
    groups = [group("a b c", "a b c", "a b c d"), group("a b c", source="Another post.")]
    assert scores("judge", groups, settings(**FAST)) == [[0.3, 0.3, 0.4], [0.3]]
    assert len(served.asked) == 3
    prompt = served.asked[0][1]
    assert POST in prompt
    assert asked_by(prompt) == ["faithfulness", "coverage", "conciseness", "clarity"]
    assert "a reference" not in prompt
    assert all(count == 1 for count in served.prompts().values())
    client_of.cache_clear()  # as another process
    scores("judge", groups, settings(**FAST))
    assert len(served.asked) == 3
    scores("judge", [group("a b c")], settings(**FAST, criteria="clarity"))  # another question
    assert asked_by(served.asked[3][1]) == ["clarity"]
    assert POST not in served.asked[3][1]  # it judges the completion alone


def test_a_group_is_compared_in_one_question(served: JudgeServer) -> None:
    """Each different text once; a group whose texts are all the same is not asked about."""
    groups = [group("a b c", "a b", "a b c"), group("x", "x")]
    assert scores("preference", groups, settings("preference", **FAST)) == [[0.3, 0.2, 0.3], [0.5, 0.5]]
    ((_, prompt),) = served.asked
    assert prompt.count("<text number=") == 2


def test_a_rubric_works_for_every_task(served: JudgeServer) -> None:
    """Also for one without criteria; it replaces those of a task that has some."""
    sets = ["judge.model=judge-a", "judge.rubric=Is it polite?", "stages.qa.rewards.judge=1.0"]
    config = resolve(TASKS, flags={"task.name": "doc-qa"}, sets=sets).config
    assert scores("judge", [group("a b")], config) == [[0.2]]
    assert scores("judge", [group("a b")], settings(**FAST, rubric="Is it polite?")) == [[0.2]]
    assert len(served.asked) == 1  # the same question
    assert "rubric:\n- Is it polite?" in served.asked[0][1]


@pytest.mark.parametrize(
    "reply",
    [
        failure(500, "oops"),
        answer("no JSON"),
        answer('{"scores": {"faithfulness": 3}}'),
        answer('{"scores": {"faithfulness": 3, "coverage": 11, "conciseness": 3, "clarity": 3}}'),
        answer('{"scores": {"faithfulness": 3, "coverage": true, "conciseness": 3, "clarity": 3}}'),
    ],
)
def test_a_question_that_fails_has_no_value(served: JudgeServer, reply: Reply) -> None:
    """It is missing, never 0, and the others have theirs; so it is asked again later."""
    served.mischief = lambda prompt, before: reply if "x y" in prompt else counted(prompt, before)
    assert scores("judge", [group("a b c", "x y", "a b")], settings(**FAST)) == [[0.3, None, 0.2]]
    assert max(served.prompts().values()) == 2  # attempts


def test_a_group_that_fails_is_missing_whole(served: JudgeServer) -> None:
    """One score outside of the range makes the comparison unusable; other groups have their scores."""
    outside = answer('{"scores": [{"text": 1, "score": 2}, {"text": 2, "score": 0}]}')
    served.mischief = lambda prompt, before: outside if "x y" in prompt else counted(prompt, before)
    groups = [group("x y", "x"), group("a b", "a")]
    assert scores("preference", groups, settings("preference", **FAST)) == [[None, None], [0.2, 0.1]]


def test_an_outage_ends_the_step(served: JudgeServer) -> None:
    """After the wait, so that the run stops with a checkpoint; what was answered is kept."""
    config = settings(**FAST)
    scores("judge", [group("a b c")], config)
    served.mischief = lambda prompt, before: failure(503, "down")
    with refuses("reward-judge judge-a", error=UnreachableError):
        scores("judge", [group("a b c", "x y")], config)
    served.mischief = counted
    assert scores("judge", [group("a b c", "x y")], config) == [[0.3, 0.2]]


def test_requests_are_limited(served: JudgeServer) -> None:
    """No request more than `judge.max_calls`; then the run stops, and a later attempt goes on."""
    config = settings(**FAST, max_calls=2)
    with refuses("judge.max_calls", "2 requests", error=UnreachableError):
        scores("judge", [group("a", "a b", "a b c")], config)
    assert len(served.asked) == 2
    client_of.cache_clear()  # another attempt
    assert scores("judge", [group("a", "a b", "a b c")], config) == [[0.1, 0.2, 0.3]]
    assert len(served.asked) == 3


JUDGE = "stages.included.rewards.judge=1.0"


@pytest.mark.parametrize(
    ("sets", "named"),
    [
        ([JUDGE], ["judge.model", "judge.model=MODEL"]),
        (["stages.included.rewards_end.judge=1.0"], ["judge.model", "judge.model=MODEL"]),
        (["judge.model=m"], ["judge or preference", "--judge MODEL"]),
        ([JUDGE, "judge.model=m", "judge.criteria=clarty"], ["'clarty'", "clarity"]),
        ([JUDGE, "judge.model=m", "judge.criteria=clarity", "judge.rubric=r"], ["judge.rubric", "judge.criteria=''"]),
        (["stages.qa.rewards.preference=1.0", "judge.model=m"], ["no criteria", "judge.rubric="]),
    ],
)
def test_settings_that_mean_nothing_are_refused(sets: list[str], named: list[str]) -> None:
    strategy, task = (None, "doc-qa") if "qa" in sets[0] else ("included", "tldr")
    with refuses(*named):
        resolve(TASKS, strategy=strategy, flags={"task.name": task}, sets=sets)


def test_a_judge_without_endpoint_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SMOLSUM_JUDGE_URL", "SMOLSUM_JUDGE_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with refuses("key", "reward-judge m"):
        client_of(replace(JudgeConfig(), model="m"))
