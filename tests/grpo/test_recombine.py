"""Texts of the wanted length from sentences of a prompt's rollouts."""

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map
from support.calls import Call, done
from support.refusals import assert_refused
from support.training import arguments, assert_goes_on, trained

from smolsum.config.resolve import resolve
from smolsum.config.sections import Config
from smolsum.config.targets import lot
from smolsum.files import read_jsonl
from smolsum.grpo.batch import Batch
from smolsum.grpo.credit import sentence_ends
from smolsum.grpo.recombine import Sentence, StartSource, learn_from_recombined, nearest_texts, sentences
from smolsum.grpo.setup.prepare import Setup, prepare
from smolsum.policy.load import snapshot
from smolsum.rollout.source import GroupRequest, LocalSource
from smolsum.runs.paths import RunPaths
from smolsum.tasks import TASKS
from smolsum.types import Rollout, RolloutGroup

FIRST = ("My uncle raised my rent by 3.5 percent.", "I wrote him a letter and got no answer.", "I am 26 years old.")
SECOND = ("My uncle wants more rent.", "We have known each other for three years.", "Should I move to Ashmere?")


@pytest.fixture(scope="module")
def setup() -> Setup:
    return prepare(resolved())


def resolved(*sets: str) -> Config:
    learn = "stages.length.learn=recombined"
    return resolve(TASKS, model="tiny", reward="length", sets=(learn, *sets)).config


def rollout(setup: Setup, text: str, *, truncated: bool = False) -> Rollout:
    ids = tuple(setup.policy.tokenizer.encode(text, add_special_tokens=False))
    ids = ids if truncated else (*ids, setup.policy.tokenizer.eos_token_id)
    return Rollout(ids, (-1.0,) * len(ids), "length" if truncated else "stop", 7, "local", 0, text)


def whole(setup: Setup, text: str, *, truncated: bool = False) -> list[str]:
    one = rollout(setup, text, truncated=truncated)
    found = sentences(one, sentence_ends(setup.policy.tokenizer), setup.policy.tokenizer, lambda part: part.length)
    assert tuple(token for part in found for token in part.token_ids) == one.token_ids[: sum(p.length for p in found)]
    assert all(part.logp == -part.length for part in found)
    return [part.text.strip() for part in found]


def test_whole_sentences_of_a_rollout(setup: Setup) -> None:
    """A point within a number ends none; what was cut is none, and after a line break there are none."""
    text = " ".join(FIRST)
    assert whole(setup, text) == [*FIRST]
    assert whole(setup, text, truncated=True) == [*FIRST[:2]]
    assert whole(setup, f"{text} And then he") == [*FIRST]
    assert whole(setup, f"{FIRST[0]} {FIRST[1]} \n{FIRST[2]}") == [*FIRST[:2]]
    assert whole(setup, "And then he") == []


def sentence(name: str, length: int, logp: float = -1.0) -> Sentence:
    """A sentence whose tokens and words are all its own."""
    words = [f"{name}{n}" for n in range(length)]
    trigrams = frozenset(zip(words, words[1:], words[2:], strict=False))
    return Sentence(tuple(lot(name, n) for n in range(length)), logp * length, name, length, trigrams)


def test_texts_begin_as_a_rollout_and_end_with_sentences_of_any() -> None:
    """All that are within the tolerance, compared with every way to put two sentences behind an opening."""
    rollouts = [[sentence(f"{r}.{n}", 5 + 3 * n + 2 * r) for n in range(3)] for r in range(2)]
    later = [one for own in rollouts for one in own[1:]]
    every = [(*own[:count], *more) for own in rollouts for count in (1, 2, 3) for k in range(3) for more in
             permutations(later, k)]  # fmt: skip
    wanted = {text for text in every if abs(sum(one.length for one in text) - 27) <= 2 and len({*text}) == len(text)}
    found = nearest_texts(rollouts, 27, 2, 1000)
    assert len(found) == len({*found})
    assert wanted <= {*found}
    assert all(abs(sum(one.length for one in text) - 27) <= 2 for text in found)
    assert all(text[0] in (rollouts[0][0], rollouts[1][0]) for text in found)


def test_few_sentences_are_added_and_the_likeliest_texts_taken() -> None:
    rollouts = [[sentence("a", 10), sentence("b", 10)], [sentence("c", 10), sentence("d", 10, logp=-2.0)]]

    def named(most: int) -> list[str]:
        return ["".join(one.text for one in text) for text in nearest_texts(rollouts, 20, 1, most)]

    assert named(2) == ["ab", "cd"]  # nothing is added where two rollouts have the length as they are
    assert named(4) == ["ab", "cd", "cb", "ad"]
    assert nearest_texts([[sentence("a", 10)], [sentence("c", 9)]], 19, 0, 9) != []  # one sentence each is enough
    assert nearest_texts(rollouts, 200, 5, 9) == []


def test_nothing_is_said_twice() -> None:
    one, same = sentence("a", 8), sentence("a", 8)._replace(text="again", token_ids=(9,) * 8)
    assert nearest_texts([[one, same]], 16, 0, 9) == []


def learnt_from(setup: Setup, texts: list[list[str]]) -> tuple[list[RolloutGroup], list[list[float]], dict[str, float]]:
    groups = [
        RolloutGroup(prompt, tuple(rollout(setup, text) for text in own))
        for prompt, own in zip(setup.prompts["train"], texts, strict=False)
    ]
    shape = (len(groups), len(texts[0]))
    batch = Batch(groups, {}, np.zeros(shape), np.zeros(shape[0], bool))
    ends = sentence_ends(setup.policy.tokenizer)
    found = learn_from_recombined(batch, setup, setup.config.stages["length"], ends)
    return found.groups, found.advantages_PG.tolist(), dict(found.metrics)


def test_the_texts_of_the_target_are_learnt_by_their_likelihood() -> None:
    """Whole completions that nobody sampled, the best by the reward; a group that makes none teaches nothing."""
    target = 30
    setup = prepare(resolved(f"task.target_tokens={target}", "task.tolerance_tokens=3"))
    groups, advantages, metrics = learnt_from(setup, [[" ".join(FIRST), " ".join(SECOND)], [FIRST[0]] * 2])
    (made, empty), eos = groups, setup.policy.tokenizer.eos_token_id
    assert made.rollouts
    assert empty.rollouts == ()
    assert advantages == [[1.0] * len(made.rollouts) + [0.0] * (2 - len(made.rollouts)), [0.0, 0.0]]
    off = [abs(one.length - target) for one in made.rollouts]
    assert off == sorted(off)
    assert max(off) <= 3
    for one in made.rollouts:
        assert (one.token_ids[-1], one.logprobs, one.finish_reason, one.policy_version) == (eos, (), "stop", 7)
        assert one.text.startswith((FIRST[0], SECOND[0]))
        assert all(part in (*FIRST, *SECOND) for part in whole(setup, one.text))
    assert metrics["recombined/texts"] == len(made.rollouts) / 2


def test_a_stage_learns_from_what_its_first_weights_sample(data: Path, tmp_path: Path, call: Call) -> None:
    """All its rollouts are of the start; the next stage samples with what was learnt. A killed run ends the same, and
    its steps can be derived again."""
    changes = {"stages__length__learn": "recombined", "stages__length__steps": 3, "stages__quality__steps": 1,
               "sampling__max_new_tokens": 128}  # fmt: skip
    whole = trained(data, tmp_path / "runs", "whole", **changes)
    rows = read_jsonl(whole / "metrics.jsonl")
    found = [row for row in rows if "recombined/texts" in row]
    assert [row["stage"] for row in rows] == [*["length"] * len(found), "quality"]
    assert all(abs(row["recombined/mean_length"] - 42) <= 5 for row in found if row["recombined/texts"])
    assert any(row["loss"] > 0 for row in found)
    versions = [read_jsonl(RunPaths(whole).completions(step))[0]["policy_version"] for step in range(1, 5)]
    assert versions == [0, 0, 0, 3]
    assert_goes_on(arguments(data, tmp_path / "other", "killed", **changes), 2, whole)
    done(call("verify", "whole", f"--runs-dir={tmp_path / 'runs'}"))


def test_the_weights_of_the_start_sample(setup: Setup) -> None:
    """And not those that were learnt since, which stay as they are."""
    policy, request = setup.policy, GroupRequest(4, setup.prompts["train"][:1], 0, 0.7)
    local = LocalSource(policy, resolved("sampling.max_new_tokens=12"))
    start, (before,) = snapshot(policy.model), local.sample(request)
    policy.model.update(tree_map(lambda p: p * 1.5, start))
    learnt = tree_flatten(policy.model.trainable_parameters())
    try:
        assert local.sample(request)[0] != before
        (found,) = StartSource(local, policy, start, 2).sample(request)
        assert [one.token_ids for one in found.rollouts] == [one.token_ids for one in before.rollouts]
        assert {one.policy_version for one in found.rollouts} == {2}
        now = dict(tree_flatten(policy.model.trainable_parameters()))
        assert all(now[name] is value for name, value in learnt)
    finally:
        policy.model.update(start)


def test_what_has_no_length_is_refused(tmp_path: Path, call: Call) -> None:
    refused = call("train", "--task=strict-json", f"--runs-dir={tmp_path}", "--set=stages.standard.learn=recombined")
    assert_refused(refused, "stages.standard.learn = 'recombined' makes texts of a set length", "learn=best")


def test_workers_are_refused(tmp_path: Path, call: Call) -> None:
    """They have the newest weights."""
    refused = call("train", "--model=tiny", "--reward=length", f"--runs-dir={tmp_path}", "--worker=http://127.0.0.1:9",
                   "--set=stages.length.learn=recombined")  # fmt: skip
    assert_refused(refused, "samples with the weights that the stage begins with", "leave the workers out")
