"""Rounds of a judge that are added until the interval is narrow enough, and scores weighted by their tokens, over real
HTTP."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.calls import Call
from support.judge_server import JudgeServer, Reply, answer, failure, serving
from support.training import make_data

from smolsum.errors import SmolsumError
from smolsum.llm.client import BadAnswer, TokenChoice
from smolsum.llm.endpoints import Endpoint
from smolsum.llm.request_policy import RequestPolicy
from smolsum.results.evaluate.geval import _weighted_score
from smolsum.results.evaluate.judge_cost import JudgeCost
from smolsum.results.evaluate.judgements import Judged, judge_facts
from smolsum.results.evaluate.judging import JudgeJob, JudgeOptions, ask_judge
from smolsum.results.evaluate.rounds import width_of
from smolsum.types import Criterion, Prompt, Rollout, RolloutGroup

QUALITY = Criterion("quality", ("Read the Actual Output.", "Rate it."), sees=("completion",))
N = 12
GROUPS = [
    RolloutGroup(
        Prompt(f"post-{n}", ({"role": "user", "content": "-"},), (), (), {}),
        (Rollout((), (), "stop", 0, "", 0, f"Worth {n % 3 + 4}, number {n}."),),
    )
    for n in range(N)
]


def noisy(steps: tuple[int, ...]) -> Callable[[str, int], Reply]:
    """A judge whose score of a text differs from its worth by one of `steps`, by how often it was asked."""

    def reply(prompt: str, before: int) -> Reply:
        worth, n = map(int, re.findall(r"Worth (\d+), number (\d+)", prompt)[-1])
        return answer(json.dumps({"reason": "known", "score": worth + steps[(before + n) % len(steps)]}))

    return reply


def ask(server: JudgeServer, folder: Path, *, rounds: int = 5, **more: Any) -> tuple[Judged, SmolsumError | None]:
    cost = JudgeCost(None, agreed=True, quiet=True)
    requests = RequestPolicy(attempts=2, deadline_s=30.0, wait_s=0.01, concurrency=1)
    options = JudgeOptions(Endpoint(server.url, "judge-a"), (), rounds, requests, cost, **more)
    return ask_judge(JudgeJob(folder, GROUPS, [QUALITY], "again"), options.endpoint, options)


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_steady_judge_is_asked_twice(tmp_path: Path) -> None:
    """Two rounds show that there is no noise; the name of the judge says by which rule it was asked."""
    with serving(mischief=noisy((0,))) as server:
        judged, failed = ask(server, tmp_path, until=0.06)
        assert failed is None
        assert (judged.spec.rounds, len(server.asked)) == (2, 2 * N)
        assert "up to 5 rounds until ±0.06" in judged.spec.name
        assert not judged.missing
        facts = judge_facts([QUALITY], judged)
        assert (facts["rounds"], facts["until"], facts["most_rounds"]) == (2, 0.06, 5)
        again, _ = ask(server, tmp_path, until=0.06)
        assert (again.spec.name, len(server.asked)) == (judged.spec.name, 2 * N)


def test_a_noisy_judge_is_asked_until_it_is_narrow(tmp_path: Path) -> None:
    """Each round narrows the interval, which is that of the means over examples; no round more than is needed."""
    with serving(mischief=noisy((-3, 2, 0, 3, -2))) as server:
        every, _ = ask(server, tmp_path / "all")
        scores = np.array([row["rounds"]["quality"] for row in every.columns([QUALITY]).values()])
        widths = {k: w.now for k in range(2, 6) if (w := width_of(scores[:, :k].tolist()))}
        wanted = (widths[3] + widths[4]) / 2
        needed = next(k for k in range(2, 6) if widths[k] <= wanted)
        server.asked.clear()
        judged, _ = ask(server, tmp_path / "until", until=wanted, fresh=True)
        assert judged.spec.rounds == needed
        assert len(server.asked) == needed * N


def test_a_width_that_no_round_can_reach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A judge without noise is not asked again for nothing, and the user learns what would help."""
    with serving(mischief=noisy((0,))) as server:
        judged, _ = ask(server, tmp_path, until=0.001)
    assert judged.spec.rounds == 2
    assert "more examples narrow it" in capsys.readouterr().err


def test_an_outage_on_the_way(tmp_path: Path) -> None:
    """The scores so far stay, and the same command asks for the rest."""
    good = noisy((-3, 3, 2, -2, 1))
    with serving() as server:
        broke = failure(429, "no credit", "insufficient_quota")
        server.mischief = lambda prompt, before: broke if len(server.asked) > N + 3 else good(prompt, before)
        judged, failed = ask(server, tmp_path, until=0.02)
        assert failed is not None
        assert sum(j.score is not None for found in judged.judgements.values() for j in found) == N + 3
        server.mischief = good
        judged, failed = ask(server, tmp_path, until=0.02)
        assert failed is None
        assert not judged.missing


def with_logprobs(prompt: str, before: int) -> Reply:
    """A 7 of probability 0.6, an 8 of 0.3 and something else."""
    status, headers, body = answer('{"reason": "score: 3 of it", "score": 7}')
    content = json.loads(body)
    top = [{"token": token, "logprob": math.log(p)} for token, p in ((" 7", 0.6), (" 8", 0.3), ("the", 0.1))]
    tokens = ['{"reason":', ' "score: 3 of it",', ' "score":', " 7", "}"]
    content["choices"][0]["logprobs"] = {
        "content": [
            {"token": t, "logprob": top[0]["logprob"], "top_logprobs": top if t == " 7" else []} for t in tokens
        ]
    }
    return status, headers, json.dumps(content).encode()


def test_a_weighted_score(tmp_path: Path) -> None:
    """(7 x 0.6 + 8 x 0.3) / 0.9 of 10; scores of a weighted judge do not compare with others of it."""
    with serving(mischief=with_logprobs) as server:
        weighted, _ = ask(server, tmp_path, rounds=1, weighted=True)
        plain, _ = ask(server, tmp_path, rounds=1)
    scores = {j.score for found in weighted.judgements.values() for j in found}
    assert len(scores) == 1
    assert scores.pop() == pytest.approx(6.6 / 9)
    assert {j.score for found in plain.judgements.values() for j in found} == {0.7}
    assert weighted.spec.name != plain.spec.name
    assert judge_facts([QUALITY], weighted)["weighted"] is True


@pytest.mark.parametrize(
    "reply",
    [lambda prompt, before: failure(400, "logprobs are not supported"), noisy((0,))],
    ids=["refused", "none returned"],
)
def test_a_judge_without_logprobs(reply: Callable[[str, int], Reply], tmp_path: Path) -> None:
    """One question, and an error that says what helps."""
    with serving(mischief=reply) as server:
        _, failed = ask(server, tmp_path, rounds=1, weighted=True)
        assert len(server.asked) == 1
    assert failed is not None
    assert "log-probs" in failed.message
    assert failed.hint is not None
    assert "--weighted" in failed.hint


def choices(*tokens: tuple[str, dict[str, float]]) -> list[TokenChoice]:
    return [TokenChoice(token, {name: math.log(p) for name, p in chances.items()}) for token, chances in tokens]


def test_a_ten_in_two_tokens() -> None:
    """Some models write digit by digit: the probability of a 1 is that of a 1 and a 10."""
    head = ('{"score": ', {'{"score": ': 1.0})
    taken = choices(head, ("1", {"1": 0.8, "9": 0.2}), ("0", {"0": 0.75, "}": 0.25}))
    assert _weighted_score({"score": 10}, taken)[0] == pytest.approx((10 * 0.6 + 1 * 0.2 + 9 * 0.2) / 10)
    nine = choices(head, ("9", {"9": 0.7, "1": 0.3}), ("}", {"}": 1.0}))
    assert _weighted_score({"score": 9}, nine)[0] == pytest.approx((9 * 0.7 + 10 * 0.3) / 10)
    two = choices(head, ("2", {"2": 0.7, "1": 0.3}), ("}", {"}": 1.0}))
    assert _weighted_score({"score": 2}, two)[0] == pytest.approx((2 * 0.7 + 1 * 0.3) / 10)


def test_no_token_is_the_score() -> None:
    with pytest.raises(BadAnswer, match="no token is"):
        _weighted_score({"score": 7}, choices(('{"score": "seven"}', {"x": 1.0})))


def test_a_weighted_judge_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """Unless --rounds says otherwise: four posts, four criteria."""
    asked = ("eval", "tiny", f"--set=data.path={make_data(tmp_path / 'data')}", "--set=sampling.max_new_tokens=16",
             "--judge", "judge-a", "--weighted")  # fmt: skip
    with serving() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert "judge judge-a: 16 calls" in call(*asked)[2]
        assert "judge judge-a: 32 calls" in call(*asked, "--rounds", 2)[2]
