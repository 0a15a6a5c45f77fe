"""The gradient of one optimizer step: that of the whole batch's loss, written out."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.models import EOS, assert_trees_close, build, group

from smolsum.config.sections import GrpoConfig, StageConfig
from smolsum.grpo.batch_gradient import batch_totals, weights
from smolsum.grpo.batch_gradient import gradients as update_gradients
from smolsum.grpo.loss import policy_loss
from smolsum.policy.cpu import native
from smolsum.policy.group_gradient import Chunking
from smolsum.policy.logprobs import group_logprobs
from smolsum.types import RolloutGroup

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map

GROUPS = [
    group([5, 9, 33, 4], [[10, 11, 12, EOS], [20, 21], [30, EOS]], stopped=[True, False, True]),
    group([7, 8, 41, 3, 22, 17, 60], [[50, 51, 52, 53, 54], [13, EOS], [40, 41, EOS]], stopped=[False, True, True]),
]
ADVANTAGES = mx.array([[1.0, -0.5, 0.3], [-1.2, 0.7, 0.5]])


LIMIT = 9


def gradients(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, float]]:
    """The update's, with a token limit of 9."""
    return update_gradients(*args, max_new_tokens=LIMIT, **kwargs)


def stage(beta: float = 0.0, temperature: float = 1.0, *, masked: bool = True) -> StageConfig:
    return StageConfig(
        {}, 1, 1.0, temperature, learning_rate=1e-3, schedule="constant", warmup_steps=0, beta=beta,
        mask_truncated=masked,
    )  # fmt: skip


def assert_same_weights(model: nn.Module, other: nn.Module) -> None:
    pairs = zip(tree_flatten(model.parameters()), tree_flatten(other.parameters()), strict=True)
    assert all(mx.array_equal(a, b).item() for (_, a), (_, b) in pairs)


def padded(rows: list[tuple[float, ...]]) -> mx.array:
    longest = max(len(row) for row in rows)
    return mx.array([[*row, *[0.0] * (longest - len(row))] for row in rows])


def naive(
    model: nn.Module,
    groups: list[RolloutGroup],
    config: GrpoConfig,
    stage: StageConfig,
    reference: nn.Module | None = None,
) -> tuple[Any, float]:
    """The gradient and the value of the clipped loss over all sequences, each group's prompt repeated."""

    def logps(model: nn.Module, p: int) -> tuple[mx.array, mx.array]:
        ids = [r.token_ids for r in groups[p].rollouts]
        return group_logprobs(
            model, groups[p].prompt.token_ids, ids, temperature=stage.temperature, shared_prefix=False
        )

    sampled = [padded([r.logprobs for r in g.rollouts]) for g in groups]
    old = sampled if config.old_logprobs == "sampler" else [logps(model, p)[0] for p in range(len(groups))]
    ref = [logps(reference, p)[0] for p in range(len(groups))] if reference else []
    mx.eval(old, ref)

    def loss(model: nn.Module) -> mx.array:
        total, count = mx.array(0.0), 0
        for p, g in enumerate(groups):
            logp, _ = logps(model, p)
            for row, rollout in enumerate(g.rollouts):
                count += 1
                tokens = len(rollout.token_ids) - (rollout.finish_reason == "stop" and not config.train_eos)
                if rollout.truncated and stage.mask_truncated:
                    continue
                ratio, advantage = mx.exp(logp[row] - old[p][row]), ADVANTAGES[p, row]
                clipped = mx.clip(ratio, 1 - config.eps_low, 1 + config.eps_high)
                gain = mx.minimum(ratio * advantage, clipped * advantage)
                if reference:
                    d = ref[p][row] - logp[row]
                    gain = gain - stage.beta * (mx.exp(d) - d - 1)
                total = total - gain[:tokens].sum() / tokens
        return total / count

    value, tree = nn.value_and_grad(model, loss)(model)
    return tree, value.item()


@pytest.mark.parametrize("old", ["sampler", "recomputed"])
@pytest.mark.parametrize("beta", [0.0, 0.2])
@pytest.mark.parametrize(("masked", "eos"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("family", ["qwen2", "lfm2"])
@pytest.mark.parametrize("library", [True, False], ids=["in C", "by MLX"])
def test_it_is_the_gradient_of_the_whole_loss(
    monkeypatch: pytest.MonkeyPatch, library: bool, family: str, masked: bool, eos: bool, beta: float, old: str
) -> None:
    """Group by group with a shared prompt, or all at once without: the same, whatever is masked or kept."""
    if not library:
        monkeypatch.setattr(native, "_library", None)
    model, reference = build(family), build(family, seed=1) if beta else None
    config = GrpoConfig(train_eos=eos, old_logprobs=old, eps_low=0.3, eps_high=0.4)
    leg = stage(beta, temperature=1.3, masked=masked)
    tree, metrics = gradients(
        model, GROUPS, ADVANTAGES, config, leg, reference=reference.parameters() if reference else None
    )
    expected, value = naive(model, GROUPS, config, leg, reference)
    assert_trees_close(tree, expected, relative=5e-5)
    assert metrics["loss"] == pytest.approx(value, rel=1e-5, abs=1e-6)


def test_chunked_logits_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits made in parts, groups on several streams: the same gradient, twice in a row, of a model left as it was."""
    monkeypatch.setattr(native, "_library", None)
    model, config = build("qwen2"), GrpoConfig(old_logprobs="recomputed")
    whole, _ = gradients(model, GROUPS * 2, mx.concatenate([ADVANTAGES] * 2), config, stage())
    for _ in range(2):
        tree, _ = gradients(
            model, GROUPS * 2, mx.concatenate([ADVANTAGES] * 2), config, stage(), chunking=Chunking(logits=3 * 64)
        )
        assert_trees_close(tree, whole)
    assert_same_weights(model, build("qwen2"))


def test_metrics_are_means_over_trained_tokens() -> None:
    """Every unmasked token of the step counts once, whichever group it is in."""
    model = build("qwen2")
    _, metrics = gradients(model, GROUPS, ADVANTAGES, GrpoConfig(), stage())
    gaps = []
    for g in GROUPS:
        logp, _ = group_logprobs(model, g.prompt.token_ids, [r.token_ids for r in g.rollouts])
        for row, rollout in zip(logp.tolist(), g.rollouts, strict=True):
            if not rollout.truncated:
                gaps += [new - old for new, old in zip(row, rollout.logprobs, strict=False)]
    assert metrics["sampling/importance_sampling_ratio/mean"] == pytest.approx(np.exp(gaps).mean(), rel=1e-5)
    assert metrics["sampling/sampling_logp_difference/mean"] == pytest.approx(np.abs(gaps).mean(), rel=1e-5)
    assert 0 < metrics["clip_ratio/region_mean"] <= 1


def test_recomputed_log_probs_make_every_ratio_one() -> None:
    """As the study had it: nothing is ever clipped, however narrow the clip. The sampler is still watched."""
    config = GrpoConfig(old_logprobs="recomputed", eps_low=1e-4, eps_high=1e-4)
    _, metrics = gradients(build("qwen2"), GROUPS, ADVANTAGES, config, stage())
    _, clipped = gradients(build("qwen2"), GROUPS, ADVANTAGES, replace(config, old_logprobs="sampler"), stage())
    assert metrics["clip_ratio/region_mean"] == 0.0
    assert clipped["clip_ratio/region_mean"] > 0
    for name in ("sampling/importance_sampling_ratio/mean", "sampling/mismatch_k3", "sampling/ess"):
        assert metrics[name] == pytest.approx(clipped[name], rel=1e-4)


@pytest.mark.parametrize("kind", ["grpo", "dapo", "gspo", "cispo", "dr_grpo"])
def test_a_correction_reaches_the_gradient(kind: str) -> None:
    """Weights at their cap multiply it: the sampler's made-up log-probs are far below the policy's."""
    surely = [
        replace(g, rollouts=tuple(replace(r, logprobs=(-99.0,) * len(r.token_ids)) for r in g.rollouts)) for g in GROUPS
    ]
    config = GrpoConfig(loss=kind, old_logprobs="recomputed", correction_cap=3.0)
    plain, _ = gradients(build("qwen2"), surely, ADVANTAGES, config, stage())
    capped = replace(config, correction="token_truncate")
    tree, metrics = gradients(build("qwen2"), surely, ADVANTAGES, capped, stage())
    assert_trees_close(tree, tree_map(lambda g: 3 * g, plain))
    assert metrics["sampling/importance_sampling_ratio/min"] == 3.0


def test_totals_leave_out_the_tokens_of_masked_rollouts() -> None:
    """Six rollouts; 4 + 2 tokens of the first group's finished ones, 2 + 3 of the second's."""
    totals = batch_totals(GROUPS, GrpoConfig(), stage(masked=True), LIMIT)
    assert (totals.sequences, totals.tokens, totals.max_length) == (6, 11, LIMIT)
    assert batch_totals(GROUPS, GrpoConfig(), stage(masked=False), LIMIT).tokens == 18


def test_totals_leave_out_what_ends_a_text_if_it_is_not_trained() -> None:
    """Of those 18 and 11 tokens, four end a text."""
    config = GrpoConfig(train_eos=False)
    assert batch_totals(GROUPS, config, stage(masked=False), LIMIT).tokens == 14
    assert batch_totals(GROUPS, config, stage(masked=True), LIMIT).tokens == 7


def test_an_end_that_is_not_trained_has_no_gradient() -> None:
    """Its own probability may be anything: with one completion that is nothing but an end, nothing is learnt."""
    only_end = [group([5, 9, 33, 4], [[EOS], [EOS]])]
    advantages = mx.array([[1.0, -0.5]])
    learnt, _ = gradients(build("qwen2"), only_end, advantages, GrpoConfig(), stage())
    untrained, metrics = gradients(build("qwen2"), only_end, advantages, GrpoConfig(train_eos=False), stage())
    assert max(mx.abs(g).max().item() for _, g in tree_flatten(learnt)) > 0
    assert max(mx.abs(g).max().item() for _, g in tree_flatten(untrained)) == 0
    assert metrics["loss"] == 0.0


@pytest.mark.parametrize("kind", ["study", "dr_grpo", "dapo", "gspo", "cispo"])
def test_group_by_group_is_the_loss_of_all_rows_at_once(kind: str) -> None:
    """Value and metrics of the step are those of one call of the loss on all rollouts."""
    model, config = build("qwen2"), GrpoConfig(loss=kind, eps_high=0.4)
    _, metrics = gradients(model, GROUPS, ADVANTAGES, config, stage())
    wide: list[list[mx.array]] = []
    for g in GROUPS:
        logp, mask = group_logprobs(model, g.prompt.token_ids, [r.token_ids for r in g.rollouts])
        mask = mask * mx.array([[0.0] if r.truncated else [1.0] for r in g.rollouts])
        old = padded([r.logprobs for r in g.rollouts])
        wide.append([mx.pad(a, [(0, 0), (0, LIMIT - a.shape[1])]) for a in (logp, old, mask)])
    logp, old, mask = (mx.concatenate(rows) for rows in zip(*wide, strict=True))
    value, expected = policy_loss(
        logp, old, ADVANTAGES.reshape(-1), mask, kind=kind, eps_low=0.2, eps_high=0.4, eps_max=5.0
    )
    # of the model, the batch and the machine, not of the loss
    own = {"entropy", "batch/skipped_groups_frac"}
    assert {name: metrics[name] for name in metrics.keys() - own} == pytest.approx(
        {"loss": value.item(), **{name: metric.item() for name, metric in expected.items()}}, rel=1e-4, abs=1e-6
    )


def test_the_policy_against_itself_has_no_kl() -> None:
    """At the first step the reference is the policy."""
    model = build("lfm2")
    _, metrics = gradients(model, GROUPS, ADVANTAGES, GrpoConfig(), stage(beta=0.5), reference=model.parameters())
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-9)


def assert_zero(tree: Any) -> None:
    for _, leaf in tree_flatten(tree):
        assert not np.array(leaf).any()


@pytest.mark.parametrize("kind", ["grpo", "study", "dr_grpo", "dapo", "gspo", "cispo"])
def test_without_advantages_there_is_nothing_to_learn(kind: str) -> None:
    """And without a pull to a reference: a gradient of exactly zero."""
    tree, metrics = gradients(build("qwen2"), GROUPS, mx.zeros((2, 3)), GrpoConfig(loss=kind), stage())
    assert_zero(tree)
    assert metrics["loss"] == 0.0


def test_a_gradient_of_zero_needs_no_memory() -> None:
    """It has the parameters' names, shapes and types, with one number for all values of each."""
    model = build("qwen2")
    tree, _ = gradients(model, GROUPS, mx.zeros((2, 3)), GrpoConfig(), stage())
    mx.eval(tree)
    for (name, leaf), (own, p) in zip(tree_flatten(tree), tree_flatten(model.parameters()), strict=True):
        assert (name, leaf.shape, leaf.dtype) == (own, p.shape, p.dtype)
        assert not any(np.asarray(leaf).strides)


def test_a_step_with_everything_cut_teaches_nothing() -> None:
    """All rollouts truncated and masked: zero, and no metric that would be a mean of nothing."""
    cut = [group([5, 9], [[10, 11], [20, 21]], stopped=[False, False])]
    tree, metrics = gradients(build("qwen2"), cut, ADVANTAGES[:1], GrpoConfig(), stage())
    assert_zero(tree)
    assert metrics == {"loss": 0.0, "batch/skipped_groups_frac": 1.0}


def test_groups_may_be_of_unequal_size() -> None:
    """A rollout that went missing leaves its group smaller, and its place in the advantages unread."""
    smaller = [GROUPS[0], RolloutGroup(GROUPS[1].prompt, GROUPS[1].rollouts[:2])]
    model = build("qwen2")
    tree, _ = gradients(model, smaller, ADVANTAGES, GrpoConfig(), stage())
    assert_trees_close(tree, naive(model, smaller, GrpoConfig(), stage())[0], relative=5e-5)


def test_the_model_is_left_as_it_was() -> None:
    """A gradient with a reference and recomputed log-probs moves no weight."""
    model, reference = build("qwen2"), build("qwen2", seed=1)
    gradients(
        model, GROUPS, ADVANTAGES, GrpoConfig(old_logprobs="recomputed"), stage(0.1), reference=reference.parameters()
    )
    assert_same_weights(model, build("qwen2"))


def test_kl_needs_a_reference() -> None:
    """A pull to nothing is an error, not silence."""
    with pytest.raises(ValueError, match="NoneType"):
        gradients(build("qwen2"), GROUPS, ADVANTAGES, GrpoConfig(), stage(beta=0.1))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_borrowed_weights_are_given_back(error: type[BaseException]) -> None:
    """The model has its own weights again, also after an error or Ctrl-C."""
    model, other = build("llama"), build("llama", seed=1)
    own = model.model.norm.weight

    def fail() -> None:
        with weights(model, other.parameters()):
            assert mx.array_equal(model.model.norm.weight, other.model.norm.weight).item()
            raise error

    with pytest.raises(error):
        fail()
    assert mx.array_equal(model.model.norm.weight, own).item()


@pytest.mark.parametrize("chunking", [Chunking(rows=1), Chunking()], ids=["one by one", "over streams"])
def test_extremes_of_a_lone_group_are_those_of_its_rollouts(chunking: Chunking) -> None:
    """Its parts' lows and highs are compared, not added."""
    model, config = build("qwen2"), GrpoConfig()
    _, metrics = gradients(model, GROUPS[:1], ADVANTAGES[:1], config, stage(), chunking=chunking)
    logp, mask = group_logprobs(model, GROUPS[0].prompt.token_ids, [r.token_ids for r in GROUPS[0].rollouts])
    gap = mx.abs(logp - padded([r.logprobs for r in GROUPS[0].rollouts])) * mask
    assert metrics["sampling/sampling_logp_difference/max"] == pytest.approx(gap.max().item(), rel=1e-5)
