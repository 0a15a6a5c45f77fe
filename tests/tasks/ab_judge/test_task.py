"""Judging between two samples: its pairs, its signals, what is measured, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data_files import lines
from support.refusals import refuses

from smolsum.config.sections import Config, DataConfig, ModelConfig
from smolsum.config.stage import StageConfig
from smolsum.grpo.advantages import group_advantages
from smolsum.policy.load import load_policy
from smolsum.rewards.combine import combine, score_all
from smolsum.tasks import TASKS
from smolsum.tasks.ab_judge.settings import AbJudgeConfig
from smolsum.tasks.ab_judge.signals import notes_tokens, read
from smolsum.tasks.ab_judge.task import measurer, summarise
from smolsum.types import Prompt, Rollout, RolloutGroup

TASK = TASKS["ab-judge"]
CONFIG = Config(model=ModelConfig(path="builtin:tiny"), task=AbJudgeConfig(name="ab-judge"))
WEIGHTS = {"judgement": 1.0, "judgement_format": 0.2, "notes_length": 0.2}
SHORT = "<notes>B repeats a word.</notes><judgement>A</judgement>"
POLICY = load_policy("builtin:tiny")


def rollout(text: str) -> Rollout:
    """What the built-in model would have sampled for this text."""
    ids = tuple(POLICY.tokenizer.encode(text, add_special_tokens=False))
    return Rollout(ids, (0.0,) * len(ids), "length", 0, "local", 0, text)


def group(*texts: str, better: str = "A", kind: str = "swapped") -> RolloutGroup:
    """One pair's judgements."""
    prompt = Prompt("p", ({"role": "user", "content": "samples"},), (1,), (better,), {"kind": kind})
    return RolloutGroup(prompt, tuple(rollout(text) for text in texts))


def data(folder: Path, rows: list[dict[str, Any]]) -> Config:
    """A configuration over rows that are all three splits."""
    for split in ("train", "validation", "test"):
        lines(folder / f"{split}.jsonl", rows)
    return replace(CONFIG, data=DataConfig(path=str(folder), prompt_column="text"))


def test_a_pair_holds_the_text_and_its_corruption_in_either_order(tmp_path: Path) -> None:
    """The reference is the letter of the text as it was; about half are A; the same seed makes the same pairs."""
    texts = [f"My sister Edith broke {n} cups in March and she has not paid." for n in range(200)]
    config = data(tmp_path, [{"text": text} for text in texts])
    pairs = TASK.prompts.load(config, "train")
    letters = []
    for text, example in zip(texts, pairs.examples, strict=True):
        a, b = example.source.removeprefix("[Sample A]:\n").split("\n\n[Sample B]:\n")
        assert {"A": a, "B": b}[example.references[0]] == text
        assert a != b
        letters.append(example.references[0])
    assert 70 < letters.count("A") < 130
    assert TASK.prompts.load(config, "train") == pairs
    other = replace(config, task=AbJudgeConfig(name="ab-judge", pairs_seed=1))
    assert TASK.prompts.load(other, "train").fingerprint != pairs.fingerprint
    assert TASK.prompts.load(config, "test").examples[0].source == pairs.examples[0].source  # so that leaks are seen


def test_the_prompt_says_how_long_notes_should_be(tmp_path: Path) -> None:
    """The number of tokens stands in the instruction; an empty instruction leaves the samples alone."""
    config = data(tmp_path, [{"text": "We saw two cats in March."}])
    example = TASK.prompts.load(config, "train").examples[0]
    system, user = TASK.prompts.messages(example, config)
    assert "notes of 128 tokens" in system["content"]
    assert user == {"role": "user", "content": example.source}
    bare = replace(config, task=AbJudgeConfig(name="ab-judge", system_prompt=""))
    assert TASK.prompts.messages(example, bare) == (user,)
    short = replace(config, task=TASK.prompts.variant(config.task, "64-tokens"))
    assert "notes of 64 tokens" in TASK.prompts.messages(example, short)[0]["content"]


@pytest.mark.parametrize(
    ("text", "task", "named"),
    [
        ({"txt": "We saw two cats."}, {}, ["'text'", "data.prompt_column=txt"]),
        ({"text": "Too short."}, {}, ["none of the 1 texts", "train", "data.prompt_column"]),
        ({"text": "We saw many cats."}, {"faults": "number"}, ["none of the 1 texts", "task.faults=all"]),
        ({"text": "We saw two cats."}, {"faults": "swaped"}, ["'swaped'", "swapped"]),
    ],
)
def test_data_that_make_no_pairs_are_one_error(
    tmp_path: Path, text: dict[str, str], task: dict[str, str], named: list[str]
) -> None:
    """A missing column, texts too short, faults that no text can have, an unknown fault: each with its remedy."""
    config = replace(data(tmp_path, [text]), task=AbJudgeConfig(name="ab-judge", **task))
    with refuses(*named):
        TASK.prompts.load(config, "train")


def test_texts_that_are_too_short_are_counted(tmp_path: Path) -> None:
    texts = [{"text": text} for text in ("We saw two cats.", "Too short.", "Me too.")]
    split = TASK.prompts.load(data(tmp_path, texts), "test")
    assert [example.id for example in split.examples] == ["test-1"]
    assert split.left_out.startswith("2 of 3 texts of the test split")


def test_signals_are_those_computed_by_hand() -> None:
    """Two of five right: each worth 0.4**4 = 0.0256, plus 0.2 where well formed, plus 0.2 for notes of their length."""
    bare, wrong, none = "<judgement>A</judgement>", SHORT.replace(">A<", ">B<"), "I cannot say."
    groups = [group(SHORT, wrong, none), group(bare, wrong)]
    tokens = notes_tokens(groups[0].rollouts[0], read(SHORT), POLICY.tokenizer.decode)
    assert tokens == len(POLICY.tokenizer.encode("B repeats a word.", add_special_tokens=False))
    config = replace(CONFIG, task=AbJudgeConfig(name="ab-judge", notes_tokens=tokens))
    scores = score_all(groups, WEIGHTS, config, TASK.rewards.signals)
    assert scores["right"] == [[1.0, 0.0, 0.0], [1.0, 0.0]]
    assert scores["judgement"] == [[pytest.approx(0.0256), 0.0, 0.0], [pytest.approx(0.0256), 0.0]]
    assert scores["judgement_format"] == [[1.0, 0.0, 0.0], [0.0, 0.0]]
    assert scores["notes_length"] == [[1.0, 0.0, 0.0], [0.0, 0.0]]
    assert combine(groups, scores, WEIGHTS) == [[pytest.approx(0.4256), 0.0, 0.0], [pytest.approx(0.0256), 0.0]]


@pytest.mark.parametrize(
    ("pieces", "tokens"),
    [
        (["<notes>", "It", " is", " B", "</notes>"], 3),
        (["<notes", ">It", " is", " B</", "notes>"], 3),  # tags and notes share tokens
        (["<notes>It is B</notes>"], 1),
        (["<notes", ">", "</notes>"], 0),
        (["It is B"], None),
    ],
)
def test_tokens_that_straddle_a_tag_count(pieces: list[str], tokens: int | None) -> None:
    made = replace(rollout("x"), token_ids=tuple(range(len(pieces))), text="".join(pieces))
    assert notes_tokens(made, read(made.text), lambda ids: "".join(pieces[i] for i in ids)) == tokens


def test_standardised_advantages_undo_the_power_of_the_accuracy() -> None:
    """Of 16 judgements 7 are right: 0.04 each, or 1 each without the power. Divided by a standard deviation, the
    group's or the batch's, both give the same advantages; as they are, they differ by that factor."""
    right, wrong = SHORT, SHORT.replace(">A<", ">B<")
    groups = [group(*[right] * 3, *[wrong] * 5), group(*[right] * 4, *[wrong] * 4)]
    plain = replace(CONFIG, task=AbJudgeConfig(name="ab-judge", accuracy_power=0.0))
    scaled, unscaled = (
        np.array(score_all(groups, {"judgement": 1.0}, config, TASK.rewards.signals)["judgement"])
        for config in (CONFIG, plain)
    )
    for scale, factor, off in (("group", 1.0, 0.02), ("batch", 1.0, 0.02), ("none", (7 / 16) ** 4, 0.0)):
        found, whole = (np.array(group_advantages(values, scale=scale)) for values in (scaled, unscaled))
        np.testing.assert_allclose(found, whole * factor, atol=off, rtol=1e-5)


@pytest.mark.parametrize(
    ("scale", "power", "warned"),
    [("group", 4.0, True), ("gdpo", 4.0, True), ("batch", 4.0, True), ("none", 4.0, False), ("group", 0.0, False)],
)
def test_a_power_that_would_cancel_is_warned_of(scale: Any, power: float, warned: bool) -> None:
    """At the start, with the setting that lets it act."""
    stage = StageConfig(WEIGHTS, 1, 1.0, 1.0, 1e-4, "constant", 0, 0.0)
    grpo, task = replace(CONFIG.grpo, advantage_scale=scale), AbJudgeConfig(name="ab-judge", accuracy_power=power)
    warnings = TASK.check(replace(CONFIG, stages={"judge": stage}, grpo=grpo, task=task))
    assert bool(warnings) is warned
    assert all("grpo.advantage_scale=none" in warning for warning in warnings)


def test_a_summary_has_the_figures_of_a_count_by_hand() -> None:
    """40 pairs: 30 judged right, 8 wrong, 2 not at all; p of 30 or more, or 10 or fewer, heads in 40 is 0.0022."""
    measure = measurer([], CONFIG)
    wrong = SHORT.replace(">A<", ">B<")
    judged = [
        (20, SHORT, "A", "swapped"), (10, wrong, "B", "name"), (5, wrong, "A", "name"), (3, SHORT, "B", "number"),
        (2, "no tags", "B", "number"),
    ]  # fmt: skip
    groups = [group(text, better=better, kind=kind) for n, text, better, kind in judged for _ in range(n)]
    rows = [measure(one.prompt, one.rollouts[0]) for one in groups]
    found = summarise(rows)
    assert found["accuracy"] == 0.75
    assert found["accuracy_low"] == pytest.approx(0.5880, abs=1e-4)
    assert found["accuracy_high"] == pytest.approx(0.8731, abs=1e-4)
    assert found["p_chance"] == pytest.approx(0.002222, abs=1e-6)
    assert (found["judged"], found["well_formed"]) == (0.95, 0.95)
    assert found["position/said_a"] == pytest.approx(23 / 38)
    assert (found["position/accuracy_a"], found["position/accuracy_b"]) == (0.8, pytest.approx(10 / 15))
    assert (found["kind/swapped"], found["kind/name"], found["kind/number"]) == (1.0, pytest.approx(10 / 15), 0.0)
    assert (found["kind_n/name"], found["kind/article"]) == (15, None)
    assert found["notes/std"] == 0
    shown = {error.name: sum(bool(error.shown(row)) for row in rows) for error in TASK.evaluation.errors}
    assert shown == {"wrong": 8, "no judgement": 2, "form": 2, "truncated": 40}


GOOD = group(SHORT)
PIECES = st.sampled_from([*SHORT.replace("<", " <").replace(">", "> ").split(), "ß 字"])


@pytest.mark.slow
@settings(max_examples=10_000)
@given(text=st.text(max_size=30) | st.lists(PIECES, max_size=9).map("".join), better=st.sampled_from("AB"))
def test_any_text_is_scored_within_its_range(text: str, better: str) -> None:
    """No exception; 0 to 1 each, nothing where it is not right, 1.4 in all at most."""
    prompt = Prompt("p", (), (1,), (better,), {"kind": "swapped"})
    groups = [RolloutGroup(prompt, (rollout(text), *GOOD.rollouts))]
    scores = score_all(groups, WEIGHTS, CONFIG, TASK.rewards.signals)
    for name in WEIGHTS:
        value = scores[name][0][0]
        assert value is not None
        assert 0 <= value <= scores["right"][0][0]  # type: ignore[operator]
    assert 0 <= combine(groups, scores, WEIGHTS)[0][0] <= 1.4  # type: ignore[operator]
