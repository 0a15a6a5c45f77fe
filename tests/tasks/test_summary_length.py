"""What the signal `length` of a summary counts."""

import pytest

from smolsum.config.sections import Config, ModelConfig, RewardsConfig
from smolsum.policy.load import load_encoder
from smolsum.tasks import TASKS
from smolsum.tasks.tldr.settings import TldrConfig
from smolsum.types import Prompt, Rollout, RolloutGroup

LETTERS = (74, 81, 87, 85, 71)
"""h, o, u, s, e: five tokens of a text that the tokenizer writes with two, `h` and `ouse`"""


@pytest.mark.parametrize(("counts", "expected"), [("sampled", -0.25), ("retokenized", -0.5)])
def test_sampled_or_retokenized(counts: str, expected: float) -> None:
    """For a target of 4: five sampled tokens miss it by one, two of the decoded text by two. The end does not count."""
    encode = load_encoder("builtin:tiny")
    assert (encode("house"), [encode(letter)[0] for letter in "house"]) == ([74, 1120], [*LETTERS])
    ids = (*LETTERS, 2)
    rollout = Rollout(ids, (-1.0,) * len(ids), "stop", 0, "w", 0, "house")
    group = RolloutGroup(Prompt("p", (), (1,), (), {}), (rollout,))
    config = Config(
        model=ModelConfig(path="builtin:tiny"),
        task=TldrConfig(target_tokens=4),
        rewards=RewardsConfig(length_counts=counts),
    )
    length = TASKS["tldr"].rewards.signals["length"]
    assert callable(length)
    assert length([group], config) == [[expected]]
