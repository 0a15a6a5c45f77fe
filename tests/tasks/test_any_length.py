"""Prompts that ask for a length of their own: settings, the text of a prompt, measures, and units."""

from dataclasses import replace

import numpy as np
import pytest
from support.models import group
from support.refusals import refuses

from smolsum.config.resolve import Resolved, resolve
from smolsum.config.sections import Config
from smolsum.config.targets import TARGET
from smolsum.policy.load import load_encoder, load_policy
from smolsum.results.evaluate.prompt_encoding import PromptWriter, encode_prompts
from smolsum.tasks import TASKS
from smolsum.tasks.data import Example
from smolsum.tasks.text_metrics import count_sentences
from smolsum.tasks.tldr.lengths import (
    length_measure,
    length_summary,
    score_short_sentences,
    score_summary_length,
    step_metrics,
)
from smolsum.types import Prompt, RolloutGroup

RANGE = ("task.targets=16-128", "task.held_out_targets=18-126/3")


def resolved(*sets: str, strategy: str | None = "finetuned") -> Resolved:
    return resolve(TASKS, model="tiny", strategy=strategy, sets=sets)


def config(*sets: str) -> Config:
    return resolved(*RANGE, *sets).config


def asking(target: int, tokens: int, text: str = "") -> RolloutGroup:
    """A group of one completion of so many tokens."""
    one = group([5, 6], [[10] * tokens + [2]], stopped=[True])
    return RolloutGroup(replace(one.prompt, metadata={TARGET: target}), (replace(one.rollouts[0], text=text),))


@pytest.mark.parametrize(
    ("sets", "named"),
    [
        (["task.targets=128-16"], ["task.targets", "128-16"]),
        (["task.targets=16-128", "task.held_out_targets=129"], ["129", "not among task.targets"]),
        (["task.held_out_targets=20"], ["task.held_out_targets", "without task.targets"]),
        (["task.target_curriculum=0.5"], ["task.target_curriculum", "without task.targets"]),
        (["task.tolerance_share=0.1"], ["task.tolerance_share", "without task.targets"]),
        ([*RANGE, "task.length_request= Be brief."], ["task.length_request", "{target}"]),
        ([*RANGE, "task.length_request= Use {words} words."], ["task.length_request", "cannot be filled in"]),
        (["task.unit=words", "rewards.length_counts=retokenized"], ["rewards.length_counts", "task.unit = words"]),
        (["task.unit=letters"], ["task.unit", "tokens, words, sentences"]),
    ],
)
def test_settings_that_mean_nothing_are_refused(sets: list[str], named: list[str]) -> None:
    with refuses(*named):
        resolved(*sets)


def test_tolerance_of_a_range_is_a_share_unless_one_is_given() -> None:
    """5 of 64, whatever the target; a tolerance of the user's own holds for every target."""
    found = resolved(*RANGE)
    assert found.sources["task.tolerance_share"] == "derived from task.targets"
    assert step_metrics([asking(128, 118), asking(16, 15)], found.config)["length/within_tol"] == 1.0
    fixed = config("task.tolerance_tokens=2")
    assert fixed.task.tolerance_share == 0.0  # type: ignore[attr-defined]
    assert step_metrics([asking(128, 118), asking(16, 15)], fixed)["length/within_tol"] == 0.5


def test_a_summary_of_one_target_has_no_parts() -> None:
    found = resolved().config
    prompt = Prompt("a", (), (), (), {TARGET: "a column of the data"})
    row = length_measure(found)(prompt, group([5], [[9] * 60]).rollouts[0])
    assert {*row} == {"tokens", "within_tol", "within_1", "within_2", "over_budget", "off_target"}
    assert not any("seen" in key or "correlation" in key for key in length_summary([row]))


def test_token_limit_must_leave_room_for_the_largest_target() -> None:
    task, words = TASKS["tldr"], resolved("task.unit=words", "task.target_tokens=60").config
    assert "128 tokens (the largest of task.targets)" in task.warnings(config("sampling.max_new_tokens=100"))[0]
    assert task.warnings(config("sampling.max_new_tokens=160")) == task.warnings(words) == []
    assert words.task.needed_tokens == 120
    (warning,) = task.warnings(replace(words, sampling=replace(words.sampling, max_new_tokens=99)))
    assert "summaries of 60 words (task.target_tokens) may need 120 tokens" in warning


def test_each_prompt_states_its_target() -> None:
    """After the post, which stays what measures and judges see; evaluations always ask the same."""
    policy, task, settings = load_policy("builtin:tiny", dtype="float32", shapes_only=True), TASKS["tldr"], config()
    test = task.prompts.load(settings, "test")
    prompts, _ = encode_prompts(policy, task, test, settings)
    assert [p.token_ids for p in prompts] == [p.token_ids for p in encode_prompts(policy, task, test, settings)[0]]
    other_seed = encode_prompts(policy, task, test, config("train.seed=7"))[0]
    assert [p.token_ids for p in prompts] == [p.token_ids for p in other_seed]
    assert len({p.metadata[TARGET] for p in prompts}) > 50
    for prompt, example in zip(prompts, test.examples, strict=True):
        assert prompt.messages[-1]["content"] == f"{example.source}\n{prompt.metadata[TARGET]} tokens"
        assert prompt.source == example.source
    train = task.prompts.load(settings, "train")
    widest, _ = encode_prompts(policy, task, train, settings)
    longest = max(len(p.token_ids) for p in widest)
    targets = task.targets.of(settings)
    assert targets is not None
    writer = PromptWriter(policy, task, settings, targets, {e.id: e for e in train.examples})
    ask = writer.at_steps("length", 100)
    asked = [ask(widest[n], step) for step in range(20) for n in range(10)]
    assert all(len(p.token_ids) <= longest and p.id == widest[n % 10].id for n, p in enumerate(asked))
    assert {p.metadata[TARGET] for p in asked} <= {*targets.trained}
    assert len({p.metadata[TARGET] for p in asked[::10]}) > 5
    narrow = PromptWriter(policy, task, config("task.target_curriculum=1"), targets, writer.examples)
    first = {narrow.at_steps("length", 100)(prompt, 0).metadata[TARGET] for prompt in widest[:40]}
    later = {narrow.at_steps("quality", 100)(prompt, 0).metadata[TARGET] for prompt in widest[:40]}
    assert first == {16, 53, 91, 128}
    assert len(later) > len(first), "the first stage alone goes from coarse to fine"


def test_a_request_may_have_a_format() -> None:
    """Digits in fixed places, or a sentence."""
    settings = config('task.length_request=" Use exactly {target:03d} {unit}."')
    messages = TASKS["tldr"].prompts.messages(Example("a", "The post.", (), {TARGET: 64}), settings)
    assert messages[-1]["content"] == "The post. Use exactly 064 tokens."


def test_reward_compares_with_what_the_prompt_asks_for() -> None:
    groups = [asking(64, 48), asking(16, 16), asking(20, 30)]
    assert score_summary_length(groups, config()) == [[-0.25], [0.0], [-0.5]]


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        ("One here. Two there. Three.", 33, 0.0),  # 11 each, as many as lengths from 59 to 69
        ("One here. Two there.", 44, -0.5),
        ("One here. One here. Two there.", 44, -0.5),
        ("1. One here. 2. Two there.", 44, -0.5),
        ("one and on and on", 22, -0.5),
        ("One here. Two there. Three.", 12, 0.0),
        ("", 0, -1.0),
    ],
)
def test_sentences_are_short_that_fit_into_the_tolerance(text: str, tokens: int, expected: float) -> None:
    """Sentences fill the width of the tolerance, here 5 around 64; nothing is won where they are shorter."""
    [[found]] = score_short_sentences([asking(64, tokens, text)], config())
    assert (found, str(found)[0]) == (expected, str(expected)[0])


def test_short_sentences_are_counted_in_the_unit_and_by_each_prompts_tolerance() -> None:
    """Ten words a sentence, for tolerances of 1 and 5."""
    groups = [asking(target, 7, " ".join([word] * 10) + ".") for target, word in ((16, "a"), (64, "b"))]
    assert score_short_sentences(groups, config("task.unit=words")) == [[pytest.approx(3 / 10 - 1)], [0.0]]


def test_what_is_said_of_any_post_is_no_short_sentence() -> None:
    """A question that opens every summary, or a last sentence that fits all, only fills."""
    texts = ("What is it? A mill burnt down.", "What is it? A bridge was closed.")
    assert score_short_sentences([asking(64, 22, text) for text in texts], config()) == [[-0.5], [-0.5]]
    assert score_short_sentences([asking(64, 22, texts[0])], config()) == [[0.0]]


def test_summary_has_the_unseen_targets_apart() -> None:
    """Against NumPy, over 30 completions that miss by -2 to 2 tokens."""
    settings = config()
    measure, rng = length_measure(settings), np.random.default_rng(1)
    asked = rng.integers(16, 129, 30)
    got = asked + rng.integers(-2, 3, 30)
    rows = [measure(g.prompt, g.rollouts[0]) for g in (asking(int(t), int(n)) for t, n in zip(asked, got, strict=True))]
    assert [row["target"] for row in rows] == asked.tolist()
    assert [row["got"] for row in rows] == got.tolist()
    summary = length_summary(rows)
    unseen = (asked % 3 == 0) & (asked >= 18) & (asked <= 126)
    assert summary["length/off_target"] == pytest.approx(np.abs(got - asked).mean())
    assert summary["length/correlation"] == pytest.approx(np.corrcoef(asked, got)[0, 1])
    for part, chosen in (("unseen", unseen), ("seen", ~unseen)):
        a, b = asked[chosen], got[chosen]
        assert summary[f"length/{part}/n"] == chosen.sum()
        assert summary[f"length/{part}/off_target"] == pytest.approx(np.abs(b - a).mean())
        assert summary[f"length/{part}/within_1"] == pytest.approx((np.abs(b - a) <= 1).mean())
        assert summary[f"length/{part}/correlation"] == pytest.approx(np.corrcoef(a, b)[0, 1])


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", 0), ("... !", 0), ("One.", 1), ("No end", 1), ("Wait... what?!", 2), ("一句。两句。", 2),
        ("It cost 3.50 dollars. Really…", 2), ('She said "no." Then she left.', 2), ("One. Two! Three?", 3),
    ],
)  # fmt: skip
def test_sentences_are_counted(text: str, sentences: int) -> None:
    assert count_sentences(text) == sentences


@pytest.mark.parametrize(("unit", "got"), [("tokens", 5), ("words", 3), ("sentences", 2)])
def test_lengths_count_the_unit(unit: str, got: int) -> None:
    """Reward, measures and metrics alike; `tokens` stay tokens."""
    settings = config(f"task.unit={unit}")
    one = asking(20, 5, "Hello there. Bye.")
    row = length_measure(settings)(one.prompt, one.rollouts[0])
    assert (row["got"], row["off_target"], row["tokens"]) == (got, 20 - got, 5)
    assert score_summary_length([one], settings) == [[-(20 - got) / 20]]
    assert step_metrics([one], settings)["length/off_target"] == 20 - got


def test_baselines_use_prompts_that_do_not_contradict() -> None:
    task = TASKS["tldr"]
    assert task.prompts.baselines_for(resolved().config.task) == ("50-words", "64-tokens")
    assert task.prompts.baselines_for(config().task) == ("plain",)
    assert task.prompts.variant(config().task, "plain") == config().task
    with refuses("task.targets"):
        task.prompts.variant(config().task, "64-tokens")


LETTERS = (74, 81, 87, 85, 71)
"""h, o, u, s, e: five tokens of a text that the tokenizer writes with two, `h` and `ouse`"""


@pytest.mark.parametrize(("counts", "expected"), [("sampled", -0.25), ("retokenized", -0.5)])
def test_sampled_or_retokenized(counts: str, expected: float) -> None:
    """For a target of 4: five sampled tokens miss it by one, two of the decoded text by two. The end does not count."""
    encode = load_encoder("builtin:tiny")
    assert (encode("house"), [encode(letter)[0] for letter in "house"]) == ([74, 1120], [*LETTERS])
    one = group([1], [[*LETTERS, 2]])
    one = replace(one, rollouts=(replace(one.rollouts[0], text="house"),))
    length = TASKS["tldr"].rewards.signals["length"]
    assert callable(length)
    assert length([one], resolved("task.target_tokens=4", f"rewards.length_counts={counts}").config) == [[expected]]
