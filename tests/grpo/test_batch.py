"""A step's rollouts: which prompts it takes, what takes the place of groups that teach nothing, and its metrics."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.models import EOS, group
from support.refusals import refuses

from smolsum.config.constraints import parse_constraints
from smolsum.config.sections import Config, GrpoConfig, ModelConfig, SamplingConfig, TrainConfig
from smolsum.config.stage import StageConfig
from smolsum.console import WaitHook, use_hook
from smolsum.errors import PluginError
from smolsum.grpo.advantages import zero_spread
from smolsum.grpo.batch import Batch, BatchSampler, learn_from, step_metrics
from smolsum.grpo.batch_gradient import gradients
from smolsum.grpo.constraints import Bounded
from smolsum.grpo.prompt_order import PromptOrder
from smolsum.policy.load import Policy, load_policy
from smolsum.policy.logprobs import group_logprobs
from smolsum.rewards import REWARDS
from smolsum.rewards.custom import make_reward
from smolsum.rewards.signal import Values
from smolsum.rollout.source import GroupRequest, LocalSource, ReferenceSource, Source
from smolsum.tasks.tldr import lengths
from smolsum.tasks.tldr.settings import TldrConfig
from smolsum.types import Prompt, RolloutGroup

# whether a completion of at most 12 tokens ends is what the reward is about: most groups are all cut
STAGE = StageConfig(
    rewards={"length": 1.0}, steps=4, epochs=1.0, temperature=1.0, learning_rate=1e-4, schedule="constant",
    warmup_steps=0, beta=0.0,
)  # fmt: skip
CONFIG = Config(
    model=ModelConfig(path="builtin:tiny"),
    task=TldrConfig(),
    sampling=SamplingConfig(rollouts=2, max_new_tokens=12),
    stages={"length": STAGE},
    train=TrainConfig(prompts_per_step=3, seed=5),
)


Signal = Callable[..., Values]


def sampler(
    source: Source, prompts: tuple[Prompt, ...], config: Config = CONFIG, *, steps: int = 3, **own: Signal
) -> BatchSampler:
    """The batches of the only stage, which rewards the length or signals of one's own, of weights 1, 2, …"""
    stage, order = config.stages["length"], PromptOrder(prompts, config, "length")
    if own:
        stage = replace(stage, rewards={name: float(n) for n, name in enumerate(own, 1)})
    places = {"first_step": 1, "steps": steps, "run_steps": steps}
    # no constraint of these stages names a measure
    return BatchSampler(source, order, config, stage, own or REWARDS, lambda prompt, rollout: {}, **places)


def collect(policy: Policy, prompts: tuple[Prompt, ...], config: Config, k: int) -> tuple[Batch, list[int]]:
    """The batch of the stage's step `k`, sampled by the policy itself."""
    return sampler(LocalSource(policy, config), prompts, config).collect(k)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy("builtin:tiny")


@pytest.fixture(scope="module")
def prompts(policy: Policy) -> tuple[Prompt, ...]:
    texts = [f"My friend number {n} lost a dog." for n in range(7)]
    return tuple(Prompt(f"p{n}", (), tuple(policy.tokenizer.encode(t)), ("",), {}) for n, t in enumerate(texts))


def test_every_epoch_has_each_prompt_once(prompts: tuple[Prompt, ...]) -> None:
    """In its own order, at any step size."""
    order = PromptOrder(prompts, CONFIG, "length")
    ids = [prompt.id for step in range(14) for prompt in order.take(step)]
    epochs = [ids[i : i + 7] for i in range(0, 42, 7)]
    assert all(sorted(epoch) == sorted(p.id for p in prompts) for epoch in epochs)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_groups_without_spread_are_replaced(policy: Policy, prompts: tuple[Prompt, ...], rounds: int) -> None:
    """As many groups as the step has prompts are learnt from; one whose rewards are equal only after the last round.
    What was sampled first is what is sampled without refilling, and twice the same."""
    order = PromptOrder(prompts, CONFIG, "length")
    config = replace(CONFIG, train=replace(CONFIG.train, refill_rounds=rounds))
    plain, kept = collect(policy, prompts, CONFIG, 1)
    assert kept == [0, 1, 2]
    batch, used = collect(policy, prompts, config, 1)
    again, same = collect(policy, prompts, config, 1)
    assert (batch.groups, used) == (again.groups, same)
    assert batch.groups[:3] == plain.groups
    spread = [len(set(row)) > 1 for row in batch.totals.tolist()]
    empty = [not s for s in spread[:3]]
    assert any(empty)  # or there is nothing to see
    assert len(used) == 3
    assert [used[n] for n in range(3) if not empty[n]] == [n for n in range(3) if not empty[n]]
    replaced = [place for place in used if place > 2]
    assert all(spread[place] for place in replaced)
    assert len(replaced) == min(sum(empty), sum(spread[3:]))
    if rounds:
        extra = [group.prompt.id for group in batch.groups[3 : 3 + sum(empty)]]
        assert extra == [prompt.id for prompt in order.take(2)[: sum(empty)]]


def test_tied_totals_of_different_signals_are_kept_with_gdpo(policy: Policy, prompts: tuple[Prompt, ...]) -> None:
    """They have advantages there, so that nothing takes their place, and they do not count as untaught."""

    def giving(*row: float) -> Signal:
        return lambda groups, config: [list(row) for _ in groups]

    for scale, untaught in (("group", 1.0), ("gdpo", 0.0)):
        config = replace(CONFIG, train=replace(CONFIG.train, refill_rounds=1))
        config = replace(config, grpo=replace(config.grpo, advantage_scale=scale))
        source = LocalSource(policy, config)
        batches = sampler(source, prompts, config, first=giving(1.0, 0.0), second=giving(0.0, 0.5))
        batch, used = batches.collect(0)
        assert used == [0, 1, 2]
        assert len(batch.groups) == (6 if untaught else 3)
        assert step_metrics(batch, np.zeros_like(batch.totals))["frac_reward_zero_std"] == untaught


def test_a_group_without_rewards_teaches_nothing(policy: Policy, prompts: tuple[Prompt, ...]) -> None:
    """Whatever a constraint has its completions be: no advantage is there to learn it with."""
    stage = replace(STAGE, constraints="length in 1..3: 0.9")
    config = replace(CONFIG, stages={"length": stage}, sampling=SamplingConfig(rollouts=8, max_new_tokens=12))
    for missing in (True, False):

        def scored(groups: list[RolloutGroup], config: Config, missing: bool = missing) -> Values:
            return [[None if missing and n == 0 else 0.5 for _ in one.rollouts] for n, one in enumerate(groups)]

        batch, _ = sampler(LocalSource(policy, config), prompts, config, own=scored).collect(1)
        assert len({*batch.measured[0].progress[0]}) > 1, "or there is nothing to see"
        assert bool(batch.untaught[0]) is missing


def test_an_epoch_is_shuffled_once(prompts: tuple[Prompt, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for each of its prompts, which takes a second a step for a million of them."""
    made: list[object] = []
    make = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: made.append(seed) or make(seed))
    order = PromptOrder(prompts, CONFIG, "length")
    for step in range(7):
        order.take(step)
    assert len(made) == 3


class EagerSource(LocalSource):
    """Samples at once what is requested ahead, and keeps it."""

    depth = 2

    def __init__(self, policy: Policy, config: Config) -> None:
        super().__init__(policy, config)
        self.kept: list[RolloutGroup] = []

    def ahead(self, request: GroupRequest) -> None:
        self.kept += self.sample(request)


@pytest.mark.parametrize("cold", [True, False])
def test_a_stage_samples_at_its_temperature(policy: Policy, prompts: tuple[Prompt, ...], cold: bool) -> None:
    """Near 0 all completions of a prompt are the same: those of the step, those that refill it, those requested
    ahead. At 1 they differ."""
    stages = {"length": replace(STAGE, temperature=0.001 if cold else 1.0)}
    config = replace(CONFIG, stages=stages, train=replace(CONFIG.train, refill_rounds=1))
    source = EagerSource(policy, config)
    batches = sampler(source, prompts, config)
    batch, _ = batches.collect(0)
    batches.request_ahead(0)
    assert len(batch.groups) > 3
    assert len(source.kept) == 6
    for groups in (batch.groups[:3], batch.groups[3:], source.kept):
        assert all(len({r.token_ids for r in group.rollouts}) == (1 if cold else 2) for group in groups)


def test_rollouts_of_a_prompt_met_again_differ(policy: Policy, prompts: tuple[Prompt, ...]) -> None:
    """A prompt that filled a place and comes up in its own step has other seeds there."""
    config = replace(CONFIG, train=replace(CONFIG.train, refill_rounds=2))
    batch, _ = collect(policy, prompts, config, 1)
    later, _ = collect(policy, prompts, CONFIG, 2)
    seeds = [rollout.seed for b in (batch, later) for group in b.groups for rollout in group.rollouts]
    assert len(set(seeds)) == len(seeds)


def test_parts_of_a_batch(policy: Policy, prompts: tuple[Prompt, ...]) -> None:
    """Groups, signals and totals stay together."""
    batch, _ = collect(policy, prompts, CONFIG, 0)
    part = (batch + batch).take([4, 0])
    assert part.groups == [batch.groups[1], batch.groups[0]]
    assert part.scores == {"length": [batch.scores["length"][1], batch.scores["length"][0]]}
    np.testing.assert_array_equal(part.totals, batch.totals[[1, 0]])


def never(completions: list[str]) -> list[None]:
    """A reward that applies to nothing."""
    return [None] * len(completions)


@pytest.mark.parametrize("steps", [3, 50])
def test_a_stage_without_any_reward_stops(policy: Policy, prompts: tuple[Prompt, ...], steps: int) -> None:
    """One event says so at the first step; after ten steps, or all of a shorter stage, it is an error."""
    asked = tuple(replace(prompt, messages=({"role": "user", "content": prompt.id},)) for prompt in prompts)
    source, notes = LocalSource(policy, CONFIG), list[str]()
    batches = sampler(source, asked, steps=steps, never=make_reward(never, file=__file__, sha256=""))
    with use_hook(WaitHook(notify=lambda kind, message: notes.append(kind))):
        for k in range(min(steps, 10) - 1):
            batches.collect(k)
        assert notes == ["no_reward"]
        with refuses(f"{min(steps, 10)} steps", "never", error=PluginError):
            batches.collect(min(steps, 10) - 1)
    sampler(source, asked, steps=1).collect(0)


# The metrics of a step

NAN = float("nan")
SHORT = Config(task=TldrConfig(target_tokens=3, tolerance_tokens=1))
# lengths without EOS: 3 and 1; 5 (cut) and 2
GROUPS = [group([5], [[9, 9, 9, EOS], [9, EOS]]), group([6], [[9] * 5, [9, 9, EOS]], stopped=[False, True])]
SCORES = {"length": [[0.0, -1.0], [-0.5, None]], "judge": [[None, None], [None, None]]}
TOTALS = np.array([[1.0, 2.0], [4.0, NAN]])


def metrics(groups: list[RolloutGroup] = GROUPS, totals: np.ndarray = TOTALS) -> dict[str, float]:
    found = step_metrics(Batch(groups, SCORES, totals, zero_spread(totals)), np.array([[1.0, -1.0], [0.0, 0.0]]))
    return found | lengths.step_metrics(groups, SHORT)


def test_hand_computed() -> None:
    """Every metric of two groups of two, one rollout cut and one reward missing."""
    expected = {
        "advantages/mean": 0.0, "advantages/std": math.sqrt(0.5), "frac_reward_zero_std": 0.5,
        "completions/mean_length": 11 / 4, "completions/min_length": 1.0, "completions/max_length": 5.0,
        "completions/clipped_ratio": 0.25, "completions/mean_terminated_length": 2.0,
        "completions/repeated_trigrams": 0.0, "length/within_tol": 0.5, "length/within_1": 0.5, "length/within_2": 1.0,
        "num_tokens": 14.0, "reward": 7 / 3, "reward_std": math.sqrt(0.5) / 2, "rewards/length/mean": -0.5,
        "rewards/length/std": math.sqrt(1 / 6),
    }  # fmt: skip
    assert metrics() == pytest.approx(expected)


def test_a_mean_of_nothing_is_left_out() -> None:
    """No rollout that ended, no reward that could be computed: no metric, not 0 and not NaN."""
    cut = [group([5], [[9, 9], [9, 9]], stopped=[False, False])]
    got = metrics(cut, np.array([[NAN, NAN]]))
    missing = {"completions/mean_terminated_length", "reward", "reward_std", "rewards/judge/mean", "rewards/judge/std"}
    assert not missing & set(got)
    assert got["completions/clipped_ratio"] == 1.0
    assert all(math.isfinite(value) for value in got.values())


def test_rows_keep_everything() -> None:
    """A row for each rollout, in order, also of a group that is not learnt from; what is missing is None, which JSON
    can write."""
    rows = Batch(GROUPS, SCORES, TOTALS, zero_spread(TOTALS)).rows({1: {0: 0.25, 1: 0.0}})
    assert [row["advantage"] for row in rows] == [None, None, 0.25, 0.0]
    assert [(row["prompt_id"], row["sample"]) for row in rows] == [("p", 0), ("p", 1), ("p", 0), ("p", 1)]
    assert [row["reward"] for row in rows] == [1.0, 2.0, 4.0, None]
    assert rows[2] == {
        "prompt_id": "p", "sample": 0, "text": "", "token_ids": [9] * 5, "finish_reason": "length",
        "rewards": {"length": -0.5, "judge": None}, "reward": 4.0, "advantage": 0.25, "worker": "w",
        "policy_version": 0, "seed": 0, "logprobs": [-3.0, -3.1, -3.2, -3.3, -3.4], "messages": (), "references": (),
    }  # fmt: skip
    assert ["references" in row for row in rows] == [True, False, True, False]


def test_an_update_of_some_rollouts_compares_these_alone() -> None:
    """The best and the worst of three, with their signals and what a constraint bounds, and no others in the mean; the
    rest keeps its row, without an advantage."""
    groups = [group([5], [[9], [8, 8], [7, 7, 7]])]
    values = [[0.0, 1.0, 4.0]]
    (bound,) = parse_constraints("length in 1..2: 0.9")
    length = Bounded(bound, np.array([[1.0, 2.0, 3.0]]), np.array([[1.0]]))
    measures, extra = [[{"n": n} for n in range(3)]], {"mark": [["a", "b", "c"]]}
    batch = Batch(groups, {"length": values}, np.array(values), np.array([False]), (length,), measures, extra)
    grpo = GrpoConfig(update_rollouts=2, constraint_method="sum", advantage_scale="none")
    kept = learn_from(batch, STAGE, [0.0], grpo)
    assert [rollout.token_ids for rollout in kept.groups[0].rollouts] == [(9,), (7, 7, 7)]
    assert kept.advantages_PG.tolist() == [[-2.0, 2.0]]
    assert kept.by_place == [{0: -2.0, 2: 2.0}]
    assert [row["advantage"] for row in batch.rows(dict(enumerate(kept.by_place)))] == [-2.0, None, 2.0]
    two = batch.keep([[0, 2]])
    assert (two.scores, two.extra) == ({"length": [[0.0, 4.0]]}, {"mark": [["a", "c"]]})
    assert two.measured[0].values.tolist() == [[1.0, 3.0]]
    assert two.measures == [[{"n": 0}, {"n": 2}]]
    whole = learn_from(batch, STAGE, [0.0], replace(grpo, update_rollouts=3))
    assert whole.groups is batch.groups
    assert [*whole.by_place[0]] == [0, 1, 2]


def test_the_best_of_a_group_counts_alone() -> None:
    """By its advantage, with a constraint in it; a group whose rollouts are alike teaches nothing."""
    groups = [group([5], [[9], [8, 8], [7, 7, 7]]), group([5], [[9], [8], [7]])]
    values = [[0.0, 1.0, 4.0], [1.0, 1.0, 1.0]]
    (bound,) = parse_constraints("length in 1..2: 0.9")
    length = Bounded(bound, np.array([[1.0, 2.0, 30.0], [1.0] * 3]), np.ones((2, 1)))
    batch = Batch(groups, {"length": values}, np.array(values), np.array([False, True]), (length,))
    stage, grpo = replace(STAGE, learn="best"), GrpoConfig()
    for multiplier, best in ((0.0, (7, 7, 7)), (5.0, (8, 8))):
        kept = learn_from(batch, stage, [multiplier], grpo)
        assert kept.groups[0].rollouts[0].token_ids == best
        assert kept.advantages_PG.tolist() == [[1.0], [0.0]]
        assert [*kept.by_place[0].values()] == [1.0]


def test_references_are_learnt_without_sampling(policy: Policy) -> None:
    """One of each prompt's, chosen by seed and step, with the end token; a long one is cut at the limit. Their loss is
    their negative log-likelihood, and no log-prob of a sampler is made up."""
    prompts = [replace(group([5, 9], [[9]]).prompt, id=name, references=("a cat", "the dog")) for name in "abcdefgh"]
    config = replace(CONFIG, stages={"length": replace(STAGE, learn="references")})
    source = ReferenceSource(policy, config)
    groups = source.sample(GroupRequest(3, prompts, 0, 1.0))
    assert groups == source.sample(GroupRequest(3, prompts, 0, 1.0))
    assert {one.rollouts[0].text for one in groups} == {"a cat", "the dog"}
    first = groups[0].rollouts[0]
    assert (policy.tokenizer.decode(list(first.token_ids[:-1])), first.finish_reason) == (first.text, "stop")
    assert first.token_ids[-1] in policy.eos_ids
    batch, _ = sampler(source, tuple(prompts), config).collect(0)
    assert not batch.untaught.any()
    kept = learn_from(batch, config.stages["length"], [], GrpoConfig())
    _, metrics = gradients(
        policy.model, kept.groups, kept.advantages_PG, GrpoConfig(), config.stages["length"], max_new_tokens=12
    )
    logps = [group_logprobs(policy.model, one.prompt.token_ids, [one.rollouts[0].token_ids])[0] for one in kept.groups]
    tokens = sum(len(one.rollouts[0].token_ids) for one in kept.groups)
    assert metrics["loss"] == pytest.approx(-sum(float(logp.sum()) for logp in logps) / tokens, rel=1e-4)
    assert not [name for name in metrics if name.startswith("sampling/")]
    short = ReferenceSource(policy, replace(config, sampling=SamplingConfig(max_new_tokens=2)))
    assert short.sample(GroupRequest(3, prompts[:1], 0, 1.0))[0].rollouts[0].truncated
