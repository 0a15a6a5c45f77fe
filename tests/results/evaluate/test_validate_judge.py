"""`smolsum eval --validate-judge` with judges over real HTTP whose errors and biases are known."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.calls import Call, done
from support.judge_server import JudgeServer, Reply, answer, failure, serving
from support.refusals import assert_refused

from smolsum.errors import SmolsumError
from smolsum.files import read_jsonl
from smolsum.results.evaluate.judge_cost import CostLimitError
from smolsum.results.evaluate.planted import DAMAGE, FILLER

VALIDATE = ("eval", "--validate-judge", "--examples", "4", "--rounds", "3")
CRITERIA = 4


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    """A judge, which the environment names."""
    with serving() as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        yield running


def references() -> set[str]:
    """Those of the built-in posts."""
    from smolsum.config.resolve import resolve
    from smolsum.tasks import TASKS

    config = resolve(TASKS, model="tiny", presets=[], config_file=None, sets=[], flags={}).config
    return {example.references[0] for example in TASKS["tldr"].prompts.load(config, "test").examples}


def right(*, first: float = 0.0, padding: float = 0.0, kinds_missed: str = "") -> Any:
    """A judge that knows the references: it passes them and nothing else, but for its taste for the text that is shown
    first and for filler; it also passes texts that match `kinds_missed`."""
    known = references()

    def worth(text: str) -> float:
        good = text in known or (kinds_missed and re.search(kinds_missed, text))
        return 0.9 if good else 0.1

    def reply(prompt: str, before: int) -> Reply:
        shown = re.findall(r"<text number=\d+>\n(.*?)\n</text>", prompt, re.DOTALL)
        if shown:
            scores = [
                (0.9 if any(text.startswith(one) for one in known) else 0.1)
                + (first if n == 0 else 0.0)
                + (padding if any(filler in text for filler in FILLER) else -0.01 * len(text) / 1000)
                for n, text in enumerate(shown)
            ]
            rows = [{"text": n, "score": max(0.0, score / 2)} for n, score in enumerate(scores, start=1)]
            return answer(json.dumps({"scores": rows}))
        case = prompt.rpartition("Test Case:\n")[2].rpartition("\nParameters:")[0]
        text = case.rpartition("Actual Output:\n")[2].strip()
        return answer(json.dumps({"reason": "known", "score": round(10 * worth(text))}))

    return reply


def found(result: tuple[int, str, str], *named: object) -> dict[str, Any]:
    """What a validation says, which ended well."""
    folder = Path(done(result, *named)[0].splitlines()[-1])
    return dict(json.loads((folder / "validation.json").read_bytes()))


def test_a_judge_that_is_right(server: JudgeServer, call: Call) -> None:
    """All figures are at their best; without a second data set it does not pass the protocol yet."""
    server.mischief = right()
    one = found(call(*VALIDATE, "--judge", "judge-a"), "2606.19544", "at least 2 data sets")
    assert one["sensitivity"]["share"] == 1.0
    # the summary of another post is a good text too, for a judge that only knows references
    assert set(one["kinds"]) == {*DAMAGE, "padded", "paraphrase"}
    assert one["kinds"]["wrong facts"]["passed"]["share"] == 0.0
    assert one["kinds"]["cut off"]["lowered"]["share"] == 1.0
    assert one["first_wins"]["share"] == 0.5
    assert one["retest"] == 1.0
    assert [step["met"] for step in one["protocol"]][1:] == [True, True, False, True]
    assert "missing" not in one


def test_calls_are_known_and_kept(server: JudgeServer, call: Call) -> None:
    """The number of calls is shown before; the same command asks nothing; more rounds ask for those alone."""
    server.mischief = right()
    said = done(call(*VALIDATE, "--judge", "judge-a"))[1]
    calls = int(re.search(r"judge-a: (\d+) calls", said)[1])  # type: ignore[index]
    assert calls == len(server.asked)
    server.asked.clear()
    done(call(*VALIDATE, "--judge", "judge-a"))
    assert not server.asked
    done(call(*VALIDATE[:-1], "4", "--judge", "judge-a"))
    assert len(server.asked) == 4 * CRITERIA


def test_a_taste_for_the_first(server: JudgeServer, call: Call) -> None:
    """It always takes the text that is shown first: stable, and fully biased, which the protocol finds."""
    server.mischief = right(first=1.0)
    one = found(call(*VALIDATE, "--judge", "judge-a"), "position bias below 0.10")
    assert one["first_wins"]["share"] == 1.0
    assert one["flipped"]["share"] == 1.0
    assert one["pair_kappa"]["kappa"] == pytest.approx(0.0)
    assert [step["met"] for step in one["protocol"]][1] is False
    assert one["protocol"][-1]["met"] is False


def test_a_taste_for_padding(server: JudgeServer, call: Call) -> None:
    """Padded texts win over their originals in both orders."""
    server.mischief = right(padding=0.5)
    one = found(call(*VALIDATE, "--judge", "judge-a"))
    assert one["padded_wins"]["share"] == 1.0
    assert one["flipped"]["share"] == 0.0


def test_a_second_data_set(server: JudgeServer, call: Call) -> None:
    """Another split of other posts is one, and only the same judge with the same prompts counts."""
    server.mischief = right()
    done(call(*VALIDATE, "--judge", "judge-a", "--split", "validation"))
    one = found(call(*VALIDATE, "--judge", "judge-a"))
    assert one["protocol"][3]["met"] is True
    other = found(call(*VALIDATE, "--judge", "judge-b"))
    assert other["protocol"][3]["met"] is False


def test_several_judges(server: JudgeServer, call: Call) -> None:
    """Each has its folder."""
    server.mischief = right()
    folders = done(call(*VALIDATE, "--judge", "judge-a", "--second-judge", "judge-b"))[0].split()
    assert folders == ["runs/judge-judge-a-tldr-test", "runs/judge-judge-b-tldr-test"]


def test_an_outage_keeps_what_was_answered(server: JudgeServer, call: Call) -> None:
    """The command fails without a validation, and then asks for the rest alone."""
    good = right()
    broke = failure(429, "no credit", "insufficient_quota")
    server.mischief = lambda prompt, before: broke if len(server.asked) > 20 else good(prompt, before)
    command = (*VALIDATE, "--judge", "judge-a", "--concurrency", "1")
    assert_refused(call(*command), "no credit", error=SmolsumError)
    folder = Path("runs/judge-judge-a-tldr-test")
    assert not (folder / "validation.json").exists()
    paid = [row for row in read_jsonl(folder / "judgements.jsonl") if row["score"] is not None and row["attempts"]]
    assert len(paid) == 20
    server.mischief = good
    server.asked.clear()
    assert "missing" not in found(call(*command))
    rows = read_jsonl(folder / "judgements.jsonl")
    scored = [row["key"] for row in rows if row["score"] is not None and row["attempts"]]
    assert len(scored) == len(set(scored)) == 20 + len(server.asked)  # nothing is paid for twice


def test_answers_that_are_missing(server: JudgeServer, call: Call) -> None:
    """A question that fails is in no figure; a judge without any answer is an error."""
    good = right()
    server.mischief = lambda prompt, before: failure(400, "too long") if "<text number" in prompt else good(prompt, 0)
    one = found(call(*VALIDATE, "--judge", "judge-a"), "answers are missing")
    assert one["missing"] == 4 * 2 * 2
    assert one["first_wins"] == {}
    assert one["protocol"][1]["met"] is False
    server.mischief = lambda prompt, before: answer("Fine.")
    assert_refused(call(*VALIDATE, "--judge", "judge-b", "--attempts", "1"), "judge-b", error=SmolsumError)


def test_cost_is_limited(server: JudgeServer, call: Call) -> None:
    """Nothing is asked where the estimate is above the limit."""
    command = (*VALIDATE, "--judge", "gpt-5-mini-2025-08-07", "--max-cost")
    assert_refused(call(*command, "0.01"), "--max-cost is 0.01", error=CostLimitError)
    assert not server.asked


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["tiny"], "takes no run or model"),
        (["--model", "tiny"], "takes no run or model"),
        (["--until", "0.1"], "--until"),
        (["--temperature", "1"], "--temperature"),
        (["--second-judge", "labels.csv"], "labels are of completions"),
        (["--task", "strict-json"], "no criteria"),
        (["--second-judge", "judge-b", "--name", "x"], "--name"),
        (["--examples", "1"], "--examples"),
    ],
)
def test_what_is_refused(flags: list[str], named: str, server: JudgeServer, call: Call) -> None:
    """One error that says what is wrong, and no question."""
    assert_refused(call(*VALIDATE, "--judge", "judge-a", *flags), named)
    assert not server.asked


def test_who_cannot_be_validated(server: JudgeServer, call: Call) -> None:
    assert_refused(call(*VALIDATE, "--judge", "none"), "--validate-judge needs a judge")
    assert_refused(call(*VALIDATE, "--judge", "labels.csv"), "cannot be the first judge")


def test_examples_need_a_validation(server: JudgeServer, call: Call) -> None:
    assert_refused(call("eval", "tiny", "--judge", "judge-a", "--examples", "3"), "--examples is for --validate-judge")
