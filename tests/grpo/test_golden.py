"""Ours against what TRL computed on the same arrays (scripts/record_golden.py), within 1e-5.

True deviations: the metrics of sequence weights and sequence ratios leave out rows without tokens, where TRL counts
them; so those are not compared.
"""

import json
from typing import Any

import numpy as np
import pytest
from support.models import build
from support.places import GOLDEN

from smolsum.config.sections import GrpoConfig
from smolsum.grpo.advantages import step_advantages
from smolsum.grpo.loss import BatchTotals, policy_loss
from smolsum.policy.logprobs import group_logprobs

# isort: split
import mlx.core as mx


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text())


LOSSES = golden("losses")
LOGP, OLD, REF, SAMPLER, MASK, ADVANTAGES = (
    mx.array(LOSSES[name]) for name in ("logp", "old", "ref", "sampler", "mask", "advantages")
)
TOTALS = BatchTotals(sequences=len(MASK), tokens=MASK.sum(), max_length=LOSSES["max_length"])


def label(case: dict[str, Any]) -> str:
    parts = [case["kind"], case["correction"]] + (["unbiased" if case["kl_unbiased"] else "kl"] if case["beta"] else [])
    return "-".join(parts + (["dropping"] if case["off_policy_delta"] else []))


def ours(case: dict[str, Any], logp: mx.array) -> tuple[mx.array, dict[str, mx.array]]:
    settings = {name: case[name] for name in ("kind", "eps_low", "eps_high", "beta", "kl_unbiased", "correction")}
    settings |= {name: case[name] for name in ("correction_cap", "correction_floor") if case[name] is not None}
    if case["kind"] == "cispo":
        settings["eps_max"] = case["eps_high"]  # TRL has one name for both
    return policy_loss(
        logp, OLD, ADVANTAGES, MASK, **settings, off_policy_delta=case["off_policy_delta"] or 0.0, ref_logp_GT=REF,
        sampler_logp_GT=SAMPLER, totals=TOTALS,
    )  # fmt: skip


def test_the_arrays_are_worth_comparing() -> None:
    """Rows of unequal length, rows masked because they were cut, every loss with and without KL, every correction."""
    lengths = np.array(MASK).sum(axis=1)
    assert len(set(lengths)) > 4
    assert (lengths == 0).sum() == 2
    assert {(case["kind"], case["beta"] > 0) for case in LOSSES["cases"]} == {
        (kind, pulled) for kind in ("grpo", "dr_grpo", "dapo", "gspo", "cispo") for pulled in (True, False)
    }
    assert len({case["correction"] for case in LOSSES["cases"]}) == 5


@pytest.mark.parametrize("case", LOSSES["cases"], ids=label)
def test_loss_gradient_and_metrics_are_those_of_trl(case: dict[str, Any]) -> None:
    """The value, its gradient with respect to every log-prob, and clip shares, KL and the sampler's mismatch under the
    same names."""
    (value, metrics), gradient = mx.value_and_grad(lambda logp: ours(case, logp))(LOGP)
    expected = np.array(case["gradient"])
    assert np.abs(expected).max() > 1e-3
    assert value.item() == pytest.approx(case["loss"], rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(np.array(gradient), expected, rtol=1e-5, atol=1e-6)
    assert {name for name in metrics if "clip_ratio" in name} == {name for name in case["metrics"] if "clip" in name}
    for name, of_trl in case["metrics"].items():
        of_rows = (case["kind"] == "gspo" and name.startswith("clip_ratio")) or (
            case["correction"].startswith("sequence") and "importance_sampling" in name
        )
        if not of_rows:
            assert metrics[name].item() == pytest.approx(of_trl, rel=1e-5, abs=1e-6), name


def test_one_dropped_sequence_makes_a_difference() -> None:
    """The off-policy mask of the recorded cases drops some sequences and keeps some."""
    case = next(case for case in LOSSES["cases"] if case["off_policy_delta"])
    assert 0 < ours(case, LOGP)[1]["off_policy/dropped"].item() < 1


@pytest.mark.parametrize("scale", ["group", "batch", "none", "gdpo"])
def test_advantages_are_those_of_trl(scale: str) -> None:
    """Of two weighted signals of unequal spread, one rollout without scores."""
    recorded = golden("advantages")
    scores = dict(zip(("first", "second"), np.array(recorded["scores"], dtype=float), strict=True))
    weights = dict(zip(scores, recorded["weights"], strict=True))
    totals = sum(weight * scores[name] for name, weight in weights.items())
    got = step_advantages(totals, scores, weights, (), (), GrpoConfig(advantage_scale=scale))[0]
    np.testing.assert_allclose(np.array(got), recorded["advantages"][scale], rtol=1e-5, atol=1e-6)


def test_token_log_probs_are_those_of_trl() -> None:
    """A Qwen2 with the recorded weights, at a temperature other than 1, the prompt shared or repeated."""
    recorded = golden("logprobs")
    model = build("qwen2", **recorded["config"])
    model.load_weights([(name, mx.array(weights)) for name, weights in recorded["weights"].items()])
    asked = (recorded["prompt"], recorded["completions"])
    for shared in (True, False):
        logp, mask = group_logprobs(model, *asked, temperature=recorded["temperature"], shared_prefix=shared)
        expected = np.array(recorded["logps"]) * np.array(mask)
        np.testing.assert_allclose(np.array(logp), expected, rtol=1e-5, atol=1e-5)
