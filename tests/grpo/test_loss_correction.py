"""Weights for tokens that another policy drew."""

import numpy as np
import pytest

from smolsum.grpo.loss import importance_weights, kept_sequences

# isort: split
import mlx.core as mx

# ratios 4, 1/2 and 1 in the first row; 3/2 and a masked 8 in the second; nothing in the third
GAP = mx.log(mx.array([[4.0, 0.5, 1.0], [1.5, 8.0, 8.0], [9.0, 9.0, 9.0]]))
MASK = mx.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("none", [[4, 0.5, 1], [1.5, 1, 1], [1, 1, 1]]),
        ("token_truncate", [[1.8, 0.5, 1], [1.5, 1, 1], [1, 1, 1]]),
        ("token_mask", [[0, 0, 1], [1.5, 1, 1], [1, 1, 1]]),
        ("sequence_truncate", [[1.8], [1.5], [1]]),
        ("sequence_mask", [[0], [1.5], [1]]),
    ],
)
def test_by_hand(kind: str, expected: list[list[float]]) -> None:
    """A token's ratio or the product of a row, capped at 1.8, or 0 outside [0.6, 1.8]; what is masked is 1."""
    mu = mx.full(GAP.shape, -2.0)
    got = importance_weights(mu + GAP, mu, MASK, kind=kind, cap=1.8, floor=0.6)
    np.testing.assert_allclose(np.array(got), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("advantage", "delta", "kept"), [(-1.0, 0.4, 0.0), (-1.0, 0.6, 1.0), (0.0, 0.4, 1.0), (2.0, 0.4, 1.0)]
)
def test_a_punished_sequence_goes_if_it_drifted(advantage: float, delta: float, kept: float) -> None:
    """The sampler thought its two tokens likelier by 1 and 0, so by 0.5 in the mean; the third is masked."""
    mu, logp = mx.array([[-1.0, -1.0, 0.0]]), mx.array([[-2.0, -1.0, -50.0]])
    mask = mx.array([[1.0, 1.0, 0.0]])
    assert kept_sequences(mx.array([advantage]), logp, mu, mask, delta=delta).tolist() == [[kept]]


def test_a_sequence_that_became_likelier_stays() -> None:
    """Only a fall counts, however far a log-prob rose."""
    mu, logp = mx.array([[-9.0]]), mx.array([[-1.0]])
    assert kept_sequences(mx.array([-1.0]), logp, mu, mx.ones((1, 1)), delta=0.1).item() == 1.0
