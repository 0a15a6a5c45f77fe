"""Rollouts of the policy in this process, as records."""

import pytest
from support.models import EOS, write

from smolsum.config.sections import SamplingConfig
from smolsum.policy.load import Policy, load_policy
from smolsum.rollout.source import decode, sample_groups
from smolsum.types import Prompt, Rollout


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load_policy(str(write(tmp_path_factory.mktemp("llama"), "llama")))


def prompt(name: str, *ids: int) -> Prompt:
    return Prompt(name, (), ids, (), {})


def test_groups_are_whole_and_say_where_they_come_from(policy: Policy) -> None:
    """G rollouts for each prompt, in its order, with version, worker, text and a seed of their own."""
    prompts = [prompt("a", 5, 9, 33), prompt("b", 7), prompt("b", 7)]
    config = SamplingConfig(rollouts=3, max_new_tokens=6)
    groups = sample_groups(policy, prompts, config, temperature=1.0, seed=1, step=4)
    assert [group.prompt for group in groups] == prompts
    rollouts = [r for group in groups for r in group.rollouts]
    assert len(rollouts) == len({r.seed for r in rollouts}) == 9
    assert {(r.policy_version, r.worker) for r in rollouts} == {(3, "local")}
    assert all(r.text == decode(policy, r.token_ids) for r in rollouts)
    assert groups == sample_groups(policy, prompts, config, temperature=1.0, seed=1, step=4)


def test_another_step_or_run_draws_anew(policy: Policy) -> None:
    """The same prompt has other rollouts at another step, and under another run's seed."""
    config = SamplingConfig(rollouts=2, max_new_tokens=8)
    drawn = [
        sample_groups(policy, [prompt("a", 5, 9)], config, seed=run, step=step)[0]
        for run, step in ((1, 0), (1, 1), (2, 0))
    ]
    assert len({tuple(r.token_ids for r in group.rollouts) for group in drawn}) == 3


def test_text_has_no_special_tokens_and_no_outer_space(policy: Policy) -> None:
    """What a reward reads."""
    ids = policy.tokenizer.encode(" two words\n")
    assert decode(policy, [*ids, EOS]) == "two words"
    assert decode(policy, [EOS]) == ""


def test_length_leaves_the_end_out() -> None:
    """EOS is not counted where it was sampled; a rollout that was cut has none."""
    stopped = Rollout((5, 6, EOS), (0.0,) * 3, "stop", 0, "w", 1, "")
    cut = Rollout((5, 6, 7), (0.0,) * 3, "length", 0, "w", 1, "")
    assert (stopped.length, stopped.truncated) == (2, False)
    assert (cut.length, cut.truncated) == (3, True)
