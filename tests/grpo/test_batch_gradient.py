"""The gradient of one optimizer step: that of the whole batch's loss, written out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.models import EOS, assert_same_arrays, assert_trees_close, build, group, stage

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
CUT = [group([5, 9], [[10, 11], [20, 21]], stopped=[False, False])]
ENDS = [group([5, 9, 33, 4], [[EOS], [EOS]])]
LIMIT = 9


def gradients(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, float]]:
    """The update's, with a token limit of 9."""
    return update_gradients(*args, max_new_tokens=LIMIT, **kwargs)


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
    """Group by group with a shared prompt, or all at once without: the same, whatever is masked or kept. The model is
    left as it was."""
    if not library:
        monkeypatch.setattr(native, "_library", None)
    model, reference = build(family), build(family, seed=1) if beta else None
    config = GrpoConfig(train_eos=eos, old_logprobs=old, eps_low=0.3, eps_high=0.4)
    leg = stage(beta=beta, temperature=1.3, mask_truncated=masked)
    frozen = reference.parameters() if reference else None
    tree, metrics = gradients(model, GROUPS, ADVANTAGES, config, leg, reference=frozen)
    expected, value = naive(model, GROUPS, config, leg, reference)
    assert_trees_close(tree, expected, relative=5e-5)
    assert metrics["loss"] == pytest.approx(value, rel=1e-5, abs=1e-6)
    assert_same_arrays(model, build(family))


def test_chunked_logits_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits made in parts, groups on several streams: the same gradient, twice in a row, of a model left as it was."""
    monkeypatch.setattr(native, "_library", None)
    model, config = build("qwen2"), GrpoConfig(old_logprobs="recomputed")
    asked = (model, GROUPS * 2, mx.concatenate([ADVANTAGES] * 2), config, stage())
    whole, _ = gradients(*asked)
    for _ in range(2):
        tree, _ = gradients(*asked, chunking=Chunking(logits=3 * 64))
        assert_trees_close(tree, whole)
    assert_same_arrays(model, build("qwen2"))


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


@pytest.mark.parametrize(
    ("masked", "eos", "tokens"), [(True, True, 11), (False, True, 18), (False, False, 14), (True, False, 7)]
)
def test_totals_leave_out_what_is_not_trained(masked: bool, eos: bool, tokens: int) -> None:
    """Six rollouts; 4 + 2 tokens of the first group's finished ones, 2 + 3 of the second's, of which four end a text,
    and 7 of those that were cut."""
    totals = batch_totals(GROUPS, GrpoConfig(train_eos=eos), stage(mask_truncated=masked), LIMIT)
    assert (totals.sequences, totals.tokens, totals.max_length) == (6, tokens, LIMIT)


@pytest.mark.parametrize("kind", ["grpo", "study", "dr_grpo", "dapo", "gspo", "cispo"])
@pytest.mark.parametrize(
    ("groups", "share", "eos"), [(GROUPS, 0.0, True), (CUT, 1.0, True), (ENDS, 1.0, False)],
    ids=["no advantages", "all cut", "ends that are not trained"],
)  # fmt: skip
def test_where_nothing_is_learnt_the_gradient_is_zero(
    kind: str, groups: list[RolloutGroup], share: float, eos: bool
) -> None:
    """Exactly, and without memory: the parameters' names, shapes and types, with one number for all values of each.
    There is no metric that would be a mean of nothing."""
    model, config = build("qwen2"), GrpoConfig(loss=kind, train_eos=eos)
    tree, metrics = gradients(model, groups, share * ADVANTAGES, config, stage())
    assert metrics == {"loss": 0.0, "batch/skipped_groups_frac": 1.0}
    for (name, leaf), (own, p) in zip(tree_flatten(tree), tree_flatten(model.parameters()), strict=True):
        assert (name, leaf.shape, leaf.dtype) == (own, p.shape, p.dtype)
        assert not np.array(leaf).any()
        assert not any(np.asarray(leaf).strides)


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


def test_groups_may_be_of_unequal_size() -> None:
    """A rollout that went missing leaves its group smaller, and its place in the advantages unread."""
    smaller = [GROUPS[0], RolloutGroup(GROUPS[1].prompt, GROUPS[1].rollouts[:2])]
    model = build("qwen2")
    tree, _ = gradients(model, smaller, ADVANTAGES, GrpoConfig(), stage())
    assert_trees_close(tree, naive(model, smaller, GrpoConfig(), stage())[0], relative=5e-5)


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
