"""The gradient of one optimizer step: that of the whole batch's loss in one call."""

from collections.abc import Sequence

import numpy as np
import pytest
from support.models import EOS, assert_same_arrays, assert_trees_close, build, group, stage

from smolsum.config.sections import GrpoConfig
from smolsum.config.stage import StageConfig
from smolsum.grpo.batch_gradient import batch_totals, gradients, with_parameters
from smolsum.grpo.credit import EndCredit
from smolsum.grpo.loss import policy_loss
from smolsum.policy.cpu import native
from smolsum.policy.group_gradient import WHOLE, Chunking
from smolsum.policy.logprobs import group_logprobs
from smolsum.types import RolloutGroup

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

GROUPS = [
    group([5, 9, 33, 4], [[10, 11, 12, EOS], [20, 21], [30, EOS]], stopped=[True, False, True]),
    group([7, 8, 41, 3, 22, 17, 60], [[50, 51, 52, 53, 54], [13, EOS], [40, 41, EOS]], stopped=[False, True, True]),
]
ADVANTAGES = mx.array([[1.0, -0.5, 0.3], [-1.2, 0.7, 0.5]])
SMALLER = [GROUPS[0], RolloutGroup(GROUPS[1].prompt, GROUPS[1].rollouts[:2])]
CUT = [group([5, 9], [[10, 11], [20, 21]], stopped=[False, False])]
ENDS = [group([5, 9, 33, 4], [[EOS], [EOS]])]
KINDS = ["grpo", "study", "dr_grpo", "dapo", "gspo", "cispo"]
LIMIT = 9
"""of tokens"""


def assert_as_at_once(
    model: nn.Module, groups: Sequence[RolloutGroup], config: GrpoConfig, stage: StageConfig, *,
    reference: nn.Module | None = None, chunking: Chunking = WHOLE, credit: EndCredit | None = None,
) -> dict[str, float]:  # fmt: skip
    """Gradient, value and metrics of the step are those of the loss of all sequences in one call, each group's prompt
    repeated. Returns the metrics."""
    rollouts = [rollout for g in groups for rollout in g.rollouts]
    given = mx.concatenate([ADVANTAGES] * 2)[: len(groups)]
    advantages = mx.concatenate([given[p, : len(g.rollouts)] for p, g in enumerate(groups)])
    if credit:
        rows = [credit.advantages(p, g, given[p, : len(g.rollouts)]) for p, g in enumerate(groups)]
        advantages = mx.concatenate([mx.pad(row, [(0, 0), (0, LIMIT - row.shape[1])]) for row in rows])
    kept = [0 if r.truncated and stage.mask_truncated else len(r.token_ids) for r in rollouts]
    if not config.train_eos:
        kept = [count - (r.finish_reason == "stop") for count, r in zip(kept, rollouts, strict=True)]

    def logps(model: nn.Module) -> mx.array:
        rows = [
            group_logprobs(
                model, g.prompt.token_ids, [r.token_ids for r in g.rollouts], temperature=stage.temperature,
                shared_prefix=False,
            )[0]
            for g in groups
        ]  # fmt: skip
        return mx.concatenate([mx.pad(row, [(0, 0), (0, LIMIT - row.shape[1])]) for row in rows])

    old = sampled = mx.array([[*r.logprobs, *[0.0] * (LIMIT - len(r.logprobs))] for r in rollouts])
    more = {"ref_logp_GT": logps(reference) if reference else None}
    if config.old_logprobs == "recomputed":
        old, more["sampler_logp_GT"] = logps(model), sampled
    mx.eval(old, more)

    def loss(model: nn.Module) -> tuple[mx.array, dict[str, mx.array]]:
        return policy_loss(
            logps(model), old, advantages, mx.arange(LIMIT) < mx.array(kept)[:, None], kind=config.loss,
            eps_low=config.eps_low, eps_high=config.eps_high, eps_max=config.eps_max, beta=stage.beta,
            correction=config.correction, correction_cap=config.correction_cap, **more,
        )  # fmt: skip

    (value, expected), tree = nn.value_and_grad(model, loss)(model)
    frozen = reference.parameters() if reference else None
    reports = list[tuple[int, int]]()
    found, metrics = gradients(
        model, groups, given, config, stage, max_new_tokens=LIMIT, reference=frozen, chunking=chunking, credit=credit,
        report=lambda *done: reports.append(done),
    )  # fmt: skip
    assert_trees_close(found, tree, relative=5e-5)
    learned = round((1 - metrics["batch/skipped_groups_frac"]) * len(groups))
    assert (reports[0], reports[-1]) == ((0, learned), (learned, learned))
    assert reports == sorted(reports)
    # of the model, the batch and the machine, not of the loss
    own = {"entropy", "batch/skipped_groups_frac"}
    assert {name: metrics[name] for name in metrics.keys() - own} == pytest.approx(
        {"loss": value.item(), **{name: metric.item() for name, metric in expected.items()}}, rel=1e-4, abs=1e-6
    )
    return metrics


@pytest.mark.parametrize(
    ("old", "correction"), [("sampler", "none"), ("recomputed", "none"), ("recomputed", "token_truncate")]
)
@pytest.mark.parametrize("beta", [0.0, 0.2])
@pytest.mark.parametrize(("masked", "eos"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize(("family", "kind"), [*(("qwen2", kind) for kind in KINDS), ("lfm2", "grpo")])
@pytest.mark.parametrize("library", [True, False], ids=["in C", "by MLX"])
def test_it_is_the_gradient_of_the_whole_loss(
    monkeypatch: pytest.MonkeyPatch, library: bool, family: str, kind: str, masked: bool, eos: bool, beta: float,
    old: str, correction: str,
) -> None:  # fmt: skip
    """Group by group with a shared prompt, or all at once without: the same, whatever is masked or kept. Ratios to
    recomputed log-probs are 1, so that nothing is clipped. The model is left as it was."""
    if not library:
        monkeypatch.setattr(native, "_library", None)
    model, reference = build(family), build(family, seed=1) if beta else None
    config = GrpoConfig(
        loss=kind, train_eos=eos, old_logprobs=old, eps_low=0.3, eps_high=0.4, correction=correction, correction_cap=0.9
    )
    leg = stage(beta=beta, temperature=1.3, mask_truncated=masked)
    metrics = assert_as_at_once(model, GROUPS, config, leg, reference=reference)
    if (family, kind) == ("qwen2", "grpo"):
        assert (metrics["clip_ratio/region_mean"] > 0) == (old == "sampler")
    assert_same_arrays(model, build(family))


@pytest.mark.parametrize(
    ("library", "chunking"),
    [(True, WHOLE), *((False, way) for way in (WHOLE, Chunking(logits=3 * 64), Chunking(rows=1), Chunking(rows=2)))],
)
@pytest.mark.parametrize(
    "groups", [GROUPS[:1], GROUPS * 2, SMALLER, [*CUT, GROUPS[0]]], ids=["one", "four", "unequal", "the first skipped"]
)
def test_chunks_and_streams_change_nothing(
    library: bool, chunking: Chunking, groups: list[RolloutGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits made in parts, groups on several streams, lows and highs of parts compared and not added, also where a
    rollout that went missing leaves its group smaller: the same gradient, twice in a row."""
    if not library:
        monkeypatch.setattr(native, "_library", None)
    model = build("qwen2")
    for _ in range(2):
        assert_as_at_once(model, groups, GrpoConfig(old_logprobs="recomputed"), stage(), chunking=chunking)


@pytest.mark.parametrize(
    ("masked", "eos", "tokens"), [(True, True, 11), (False, True, 18), (False, False, 14), (True, False, 7)]
)
def test_totals_leave_out_what_is_not_trained(masked: bool, eos: bool, tokens: int) -> None:
    """Six rollouts; 4 + 2 tokens of the first group's finished ones, 2 + 3 of the second's, of which four end a text,
    and 7 of those that were cut."""
    totals = batch_totals(GROUPS, GrpoConfig(train_eos=eos), stage(mask_truncated=masked), LIMIT)
    assert (totals.sequences, totals.tokens, totals.max_length) == (6, tokens, LIMIT)


@pytest.mark.parametrize("kind", KINDS)
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
    tree, metrics = gradients(model, groups, share * ADVANTAGES, config, stage(), max_new_tokens=LIMIT)
    assert metrics == {"loss": 0.0, "batch/skipped_groups_frac": 1.0}
    for (name, leaf), (own, p) in zip(tree_flatten(tree), tree_flatten(model.parameters()), strict=True):
        assert (name, leaf.shape, leaf.dtype) == (own, p.shape, p.dtype)
        assert not np.array(leaf).any()
        assert not any(np.asarray(leaf).strides)


def test_kl_needs_a_reference() -> None:
    """A pull to nothing is an error, not silence."""
    with pytest.raises(ValueError, match="NoneType"):
        gradients(build("qwen2"), GROUPS, ADVANTAGES, GrpoConfig(), stage(beta=0.1), max_new_tokens=LIMIT)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_borrowed_weights_are_given_back(error: type[BaseException]) -> None:
    """The model has its own weights again, also after an error or Ctrl-C."""
    model, other = build("llama"), build("llama", seed=1)

    def fail() -> None:
        with with_parameters(model, other.parameters()):
            assert_same_arrays(model, other)
            raise error

    with pytest.raises(error):
        fail()
    assert_same_arrays(model, build("llama"))


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "dapo", "cispo"])
@pytest.mark.parametrize("chunking", [WHOLE, Chunking(rows=2)])
def test_tokens_have_advantages_of_their_own(kind: str, chunking: Chunking) -> None:
    """Where a part is credited to the ends: as in one call with an advantage for each token, also in chunks."""
    credit = EndCredit(0.7 * ADVANTAGES, frozenset([11, 50, 52]))
    config, given = GrpoConfig(loss=kind, eps_high=0.5), stage(mask_truncated=False)
    found = assert_as_at_once(build("qwen2"), GROUPS, config, given, chunking=chunking, credit=credit)
    plain = assert_as_at_once(build("qwen2"), GROUPS, config, given, chunking=chunking)
    assert found["loss"] != pytest.approx(plain["loss"])
