"""Texts corrupted by a model behind an endpoint: a real server on loopback that answers, and that does not."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.calls import Call, done
from support.data_files import lines
from support.judge_server import Mischief, Reply, answer, failure, serving
from support.pauses import recorded
from support.refusals import assert_refused, refuses

from smolsum.config.sections import Config, DataConfig
from smolsum.console import WaitHook, use_hook
from smolsum.errors import SmolsumError, UnreachableError
from smolsum.tasks import TASKS
from smolsum.tasks.ab_judge.corruptor_model import REQUESTS
from smolsum.tasks.ab_judge.settings import AbJudgeConfig
from smolsum.tasks.data import Split

TASK = TASKS["ab-judge"]
TEXTS = [f"My aunt Edith broke {n} cups in March." for n in range(30)]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Thirty texts, one that is too short, and a cache of this test alone."""
    lines(tmp_path / "train.jsonl", [{"text": text} for text in [*TEXTS, "Too short."]])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return Config(
        data=DataConfig(path=str(tmp_path), prompt_column="text", validation_share=0.0, test_share=0.0),
        task=AbJudgeConfig(name="ab-judge", corruptor="judge-a"),
    )


def worse(prompt: str, before: int) -> Reply:
    """A changed month; the first text is given back as it was, each time."""
    text = re.search(r"Text:\n(.*)", prompt, re.S)[1]  # type: ignore[index]
    changed = text if " 0 cups" in text else text.replace("March", "May")
    return answer(json.dumps({"text": changed}))


def same(prompt: str, before: int) -> Reply:
    """The text as it was."""
    return answer(json.dumps({"text": re.search(r"Text:\n(.*)", prompt, re.S)[1]}))  # type: ignore[index]


Load = Callable[..., Split]


@pytest.fixture
def load(config: Config, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Makes the pairs by the model at an address; `retry` changes how it is asked again."""

    def by(url: str, config: Config = config, **retry: Any) -> Split:
        monkeypatch.setattr("smolsum.tasks.ab_judge.corruptor_model.REQUESTS", replace(REQUESTS, **retry))
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        return TASK.prompts.load(config, "train")

    return by


def but(gone: Reply, *texts: str) -> Mischief:
    """Every text is changed but those with these words, which get this reply."""
    return lambda prompt, before: gone if any(text in prompt for text in texts) else worse(prompt, before)


REFUSED = failure(400, "this text violates our rules")


def test_a_model_corrupts_what_is_long_enough_once(config: Config, load: Load) -> None:
    """Every pair holds what the model made of its text; one that it gave back makes none; nothing is asked twice, not
    even that, and no server has to answer."""
    with serving(mischief=worse) as server:
        split = load(server.url, attempts=2, wait_s=0.01)
        assert len(server.asked) == 31  # each once, the unchanged one twice
        assert load(server.url) == split
        assert len(server.asked) == 31
    assert TASK.prompts.load(config, "train") == split
    assert len(split.examples) == 29
    assert split.left_out.startswith("2 of 31 texts")
    for example in split.examples:
        assert "in March." in example.source
        assert "in May." in example.source
        assert (example.metadata["kind"], example.metadata["after"]) == ("model", "y")
        right = example.source.split("[Sample B]:\n")["AB".index(example.references[0])]
        assert "March" in right


def test_a_server_elsewhere_is_another_corruptor(load: Load) -> None:
    """The name of its model alone says nothing: it is asked itself."""
    with serving(mischief=worse) as one, serving(mischief=worse) as other:
        assert load(one.url, attempts=1) == load(other.url, attempts=1)
        assert len(one.asked) == len(other.asked) == 30


@pytest.mark.parametrize("gone", [failure(500, "oops"), failure(429, "slow", retry_after="0")])
def test_no_pairs_are_made_of_some_texts(load: Load, gone: Reply) -> None:
    """Nothing is trained on while an answer is out; the next time only that is asked, and all pairs are there."""
    with serving(mischief=but(gone, " 7 cups")) as server:
        with refuses("corruptor judge-a", "1 question", "answers are kept", error=UnreachableError):
            load(server.url, attempts=2, wait_s=0.01)
        asked, server.mischief = len(server.asked), worse
        assert len(load(server.url).examples) == 29
        assert len(server.asked) == asked + 1


def test_what_is_refused_makes_no_pair_for_good(load: Load) -> None:
    """A run that is resumed has the pairs that it began with, whatever the endpoint would take by then."""
    with serving(mischief=but(REFUSED, " 7 cups")) as server:
        split = load(server.url, attempts=1)
        assert split.left_out.startswith("3 of 31 texts")
        server.mischief = worse
        assert load(server.url) == split


def test_what_was_refused_before_the_end_is_not_asked_again(load: Load) -> None:
    """However that ends the asking: here the account has no credit left."""
    empty = failure(429, "pay", code="insufficient_quota")

    def reply(prompt: str, before: int) -> Reply | None:
        return REFUSED if " 1 cups" in prompt else but(empty, " 7 cups")(prompt, before)

    with serving(mischief=reply) as server:
        with refuses("credit", error=SmolsumError):
            load(server.url)
        server.mischief = worse
        assert load(server.url).left_out.startswith("3 of 31 texts")
        assert sum(" 1 cups" in prompt for _, prompt in server.asked) == 1


@pytest.mark.parametrize("count", [5, 30])
def test_a_model_that_refuses_whatever_it_is_asked_decides_nothing(load: Load, tmp_path: Path, count: int) -> None:
    """Its name is wrong, or its server: put right, it is asked all of them, and all pairs are there."""
    lines(tmp_path / "train.jsonl", [{"text": text} for text in TEXTS[:count]])
    with serving(mischief=lambda prompt, before: failure(400, "no such deployment")) as server:
        reason = "refused 20 questions in a row" if count > 20 else "none of the 5 texts"
        with pytest.raises(SmolsumError, match=reason) as caught:
            load(server.url)
        assert "kept" not in caught.value.message
        assert "said" not in (caught.value.hint or "")
        asked, server.mischief = len(server.asked), worse
        assert len(load(server.url).examples) == count - 1  # one is given back as it was
        # three times; requests under way when the 20th refusal ended the rest may arrive later
        assert count > 20 or len(server.asked) == asked + count + 2


def test_how_far_it_is(load: Load) -> None:
    """At the beginning, at once where no server answers, and at the end."""
    said: list[str] = []
    with (
        serving(mischief=lambda prompt, before: worse(prompt, before) if before else failure(500, "oops")) as server,
        use_hook(WaitHook(progress=said.append)),
    ):
        load(server.url, wait_s=0.01)
    assert said == [
        "corruptor judge-a: 0/30",
        "corruptor judge-a: 0/30; does not answer: HTTP 500: oops; trying again",
        "corruptor judge-a: 30/30, 1 failed",
    ]


def test_rubbish_is_soon_found_out(load: Load, monkeypatch: pytest.MonkeyPatch, call: Call, tmp_path: Path) -> None:
    """An endpoint that answers at once, and never as it was asked to, is not waited for; the training says whom it asks
    and how far it is."""
    with serving(mischief=lambda prompt, before: answer('{"text": "banana"}')) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        own = [f"--set=data.path={tmp_path}", "--set=data.prompt_column=text", f"--runs-dir={tmp_path / 'runs'}"]
        own += ["--set=data.validation_share=0", "--set=data.test_share=0"]
        refused = call("train", "--task=ab-judge", "--set=task.corruptor=judge-a", "--plain", *own)
        assert_refused(refused, "corruptor judge-a: 0/30", "20 questions in a row", error=SmolsumError)
        assert 60 <= len(server.asked) <= 27 * REQUESTS.bad_answers
        pauses = recorded(monkeypatch)
        with refuses("20 questions in a row", error=SmolsumError):
            load(server.url)
        assert len(pauses) >= 20 * (REQUESTS.bad_answers - 1)
        assert not any(pauses)


def test_a_model_that_changes_nothing_is_one_error(load: Load, tmp_path: Path) -> None:
    """It is given up after a while. The error is about the model, and not about rules that the user did not choose."""
    with serving(mischief=same) as server:
        with refuses("20 questions", error=SmolsumError):
            load(server.url, attempts=1)
        lines(tmp_path / "train.jsonl", [{"text": TEXTS[0]}])
        with refuses("judge-a", "gave it back", "task.corruptor=NAME") as caught:
            load(server.url, attempts=1)
    assert "faults" not in f"{caught.value.message} {caught.value.hint}"


def test_an_endpoint_that_is_down_or_refuses_is_one_error(config: Config, load: Load) -> None:
    """A key that is wrong, a name that it does not have: said once, not once a text, and nothing is asked."""
    with refuses("corruptor", "OPENAI_BASE_URL", error=UnreachableError):
        load("http://127.0.0.1:9/v1")
    with serving(key="a-key") as server, refuses("key", "OPENAI_API_KEY"):
        load(server.url)
    unknown = replace(config, task=AbJudgeConfig(name="ab-judge", corruptor="judge-c"))
    with serving() as server, refuses("'judge-c'", "judge-b"):
        load(server.url, unknown)


@pytest.mark.parametrize("more", [(), ("--model", "all")])
def test_a_dry_run_asks_the_corruptor_nothing(
    more: tuple[str, ...], config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """It forecasts with pairs of about that length, and says where the texts come from."""
    for name in ("validation", "test"):
        shutil.copyfile(tmp_path / "train.jsonl", tmp_path / f"{name}.jsonl")
    data = ("--set", f"data.path={tmp_path}", "--set", "data.prompt_column=text", "--runs-dir", str(tmp_path / "runs"))
    with serving(mischief=worse) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        asked = call("train", "--task", "ab-judge", "--set", "task.corruptor=judge-a", *data, *more, "--dry-run")
        _, err = done(asked)
        assert not server.asked
    assert err.count("the corrupted texts come from the corruptor judge-a when training starts") == 1
    assert len(TASK.prompts.load_preview(config, "train").examples) == len(TEXTS)
