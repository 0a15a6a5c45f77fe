"""Texts corrupted by a model behind an endpoint: a real server on loopback that answers, and that does not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.judge_server import Reply, answer, failure, serving
from support.pauses import recorded

from smolsum.cli.main import main
from smolsum.config.sections import Config, DataConfig
from smolsum.errors import SmolsumError, UnreachableError, UsageError
from smolsum.llm.request_policy import WaitHook, use_hook
from smolsum.tasks import TASKS
from smolsum.tasks.ab_judge.corruptor_model import RETRY
from smolsum.tasks.ab_judge.settings import AbJudgeConfig
from smolsum.tasks.data import Split

TASK = TASKS["ab-judge"]
TEXTS = [f"My aunt Edith broke {n} cups in March." for n in range(30)]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Thirty texts, one that is too short, and a cache of this test alone."""
    rows = "".join(json.dumps({"text": text}) + "\n" for text in [*TEXTS, "Too short."])
    (tmp_path / "train.jsonl").write_text(rows)
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


def load(config: Config, url: str, monkeypatch: pytest.MonkeyPatch) -> Split:
    """The pairs, by the model at this address."""
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    return TASK.prompts.load(config, "train")


def test_a_model_corrupts_what_is_long_enough_once(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair holds what the model made of its text; one that it gave back makes none; nothing is asked twice, not
    even that, and no server has to answer."""
    monkeypatch.setattr("smolsum.tasks.ab_judge.corruptor_model.RETRY", replace(RETRY, attempts=2, wait_s=0.01))
    with serving(mischief=worse) as server:
        split = load(config, server.url, monkeypatch)
        assert len(server.asked) == 31  # each once, the unchanged one twice
        assert load(config, server.url, monkeypatch) == split
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


def test_a_server_elsewhere_is_another_corruptor(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of its model alone says nothing: it is asked itself."""
    monkeypatch.setattr("smolsum.tasks.ab_judge.corruptor_model.RETRY", replace(RETRY, attempts=1))
    with serving(mischief=worse) as one, serving(mischief=worse) as other:
        assert load(config, one.url, monkeypatch) == load(config, other.url, monkeypatch)
        assert len(one.asked) == len(other.asked) == 30


@pytest.mark.parametrize("gone", [failure(500, "oops"), failure(429, "slow", retry_after="0")])
def test_no_pairs_are_made_of_some_texts(config: Config, monkeypatch: pytest.MonkeyPatch, gone: Reply) -> None:
    """Nothing is trained on while an answer is out; the next time only that is asked, and all pairs are there."""
    monkeypatch.setattr("smolsum.tasks.ab_judge.corruptor_model.RETRY", replace(RETRY, attempts=2, wait_s=0.01))
    with serving(mischief=lambda prompt, before: gone if " 7 cups" in prompt else worse(prompt, before)) as server:
        with pytest.raises(UnreachableError, match="the corruptor judge-a gave no answer to 1 question") as caught:
            load(config, server.url, monkeypatch)
        assert "answers are kept" in (caught.value.hint or "")
        asked, server.mischief = len(server.asked), worse
        assert len(load(config, server.url, monkeypatch).examples) == 29
        assert len(server.asked) == asked + 1


def test_what_is_refused_makes_no_pair_for_good(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is resumed has the pairs that it began with, whatever the endpoint would take by then."""
    refused = failure(400, "this text violates our rules")
    with serving(mischief=lambda prompt, before: refused if " 7 cups" in prompt else worse(prompt, before)) as server:
        monkeypatch.setattr("smolsum.tasks.ab_judge.corruptor_model.RETRY", replace(RETRY, attempts=1))
        split = load(config, server.url, monkeypatch)
        assert split.left_out.startswith("3 of 31 texts")
        server.mischief = worse
        assert load(config, server.url, monkeypatch) == split


def test_what_was_refused_before_the_end_is_not_asked_again(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """However that ends the asking: here the account has no credit left."""
    refused, empty = failure(400, "this text violates our rules"), failure(429, "pay", code="insufficient_quota")

    def reply(prompt: str, before: int) -> Reply:
        return refused if " 1 cups" in prompt else empty if " 7 cups" in prompt else worse(prompt, before)

    with serving(mischief=reply) as server:
        with pytest.raises(SmolsumError, match="no credit left"):
            load(config, server.url, monkeypatch)
        server.mischief = worse
        assert load(config, server.url, monkeypatch).left_out.startswith("3 of 31 texts")
        assert sum(" 1 cups" in prompt for _, prompt in server.asked) == 1


@pytest.mark.parametrize("count", [5, 30])
def test_a_model_that_refuses_whatever_it_is_asked_decides_nothing(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int
) -> None:
    """Its name is wrong, or its server: put right, it is asked all of them, and all pairs are there."""
    rows = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:count])
    (tmp_path / "train.jsonl").write_text(rows)
    with serving(mischief=lambda prompt, before: failure(400, "no such deployment")) as server:
        reason = "refused 20 questions in a row" if count > 20 else "none of the 5 texts"
        with pytest.raises(SmolsumError, match=reason) as caught:
            load(config, server.url, monkeypatch)
        assert "kept" not in caught.value.message
        assert "said" not in (caught.value.hint or "")
        asked, server.mischief = len(server.asked), worse
        assert len(load(config, server.url, monkeypatch).examples) == count - 1  # one is given back as it was
        # three times; requests under way when the 20th refusal ended the rest may arrive later
        assert count > 20 or len(server.asked) == asked + count + 2


def test_how_far_it_is(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the beginning, at once where no server answers, and at the end."""
    monkeypatch.setattr("smolsum.tasks.ab_judge.corruptor_model.RETRY", replace(RETRY, wait_s=0.01))
    said: list[str] = []
    with (
        serving(mischief=lambda prompt, before: worse(prompt, before) if before else failure(500, "oops")) as server,
        use_hook(WaitHook(progress=said.append)),
    ):
        load(config, server.url, monkeypatch)
    assert said == [
        "corruptor judge-a: 0/30",
        "corruptor judge-a: 0/30; does not answer: HTTP 500: oops; trying again",
        "corruptor judge-a: 30/30, 1 failed",
    ]


def test_rubbish_is_soon_found_out(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An endpoint that answers at once, and never as it was asked to, is not waited for; the training says whom it asks
    and how far it is."""
    with serving(mischief=lambda prompt, before: answer('{"text": "banana"}')) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        own = [f"--set=data.path={tmp_path}", "--set=data.prompt_column=text", f"--runs-dir={tmp_path / 'runs'}"]
        own += ["--set=data.validation_share=0", "--set=data.test_share=0"]
        assert main(["train", "--task=ab-judge", "--set=task.corruptor=judge-a", "--plain", *own]) == 1
        assert 60 <= len(server.asked) <= 27 * RETRY.bad_answers
        pauses = recorded(monkeypatch)
        with pytest.raises(SmolsumError, match="no usable answer to 20 questions in a row"):
            load(config, server.url, monkeypatch)
        assert len(pauses) >= 20 * (RETRY.bad_answers - 1)
        assert not any(pauses)
    err = capsys.readouterr().err
    assert "corruptor judge-a: 0/30\n" in err
    assert "error: the corruptor judge-a gave no usable answer to 20 questions in a row" in err


def test_only_texts_that_no_model_changes(config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error is about the model, and not about rules that the user did not choose."""
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": TEXTS[0]}) + "\n")
    monkeypatch.setattr("smolsum.tasks.ab_judge.corruptor_model.RETRY", replace(RETRY, attempts=1))
    with (
        serving(mischief=same) as server,
        pytest.raises(UsageError, match="judge-a refused it, or gave it back") as caught,
    ):
        load(config, server.url, monkeypatch)
    assert "task.corruptor=NAME" in (caught.value.hint or "")
    assert "faults" not in f"{caught.value.message} {caught.value.hint}"


def test_an_endpoint_that_is_down_is_one_error(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to start, and nothing is asked."""
    with pytest.raises(UnreachableError, match="corruptor") as caught:
        load(config, "http://127.0.0.1:9/v1", monkeypatch)
    assert "OPENAI_BASE_URL" in (caught.value.hint or "")
    assert caught.value.exit_code == 3


def test_an_endpoint_that_refuses_is_one_error(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is wrong, a name that it does not have: said once, not once a text."""
    with serving(key="a-key") as server, pytest.raises(UsageError, match="refuses the key") as caught:
        load(config, server.url, monkeypatch)
    assert "OPENAI_API_KEY" in (caught.value.hint or "")
    unknown = replace(config, task=AbJudgeConfig(name="ab-judge", corruptor="judge-c"))
    with serving() as server, pytest.raises(UsageError, match="no corruptor 'judge-c'") as caught:
        load(unknown, server.url, monkeypatch)
    assert "judge-" in (caught.value.hint or "")


def test_a_model_that_changes_nothing_is_one_error(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up after a while, with a remedy."""
    monkeypatch.setattr("smolsum.tasks.ab_judge.corruptor_model.RETRY", replace(RETRY, attempts=1))
    with (
        serving(mischief=same) as server,
        pytest.raises(SmolsumError, match="no usable answer to 20 questions") as caught,
    ):
        load(config, server.url, monkeypatch)
    assert caught.value.hint


@pytest.mark.parametrize("more", [(), ("--model", "all")])
def test_a_dry_run_asks_the_corruptor_nothing(
    more: tuple[str, ...],
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It forecasts with pairs of about that length, and says where the texts come from."""
    for name in ("validation", "test"):
        (tmp_path / f"{name}.jsonl").write_bytes((tmp_path / "train.jsonl").read_bytes())
    data = ("--set", f"data.path={tmp_path}", "--set", "data.prompt_column=text", "--runs-dir", str(tmp_path / "runs"))
    with serving(mischief=worse) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        code = main(["train", "--task", "ab-judge", "--set", "task.corruptor=judge-a", *data, *more, "--dry-run"])
        err = capsys.readouterr().err
        assert code == 0, err
        assert not server.asked
    assert err.count("the corrupted texts come from the corruptor judge-a when training starts") == 1
    assert len(TASK.prompts.load_preview(config, "train").examples) == len(TEXTS)
