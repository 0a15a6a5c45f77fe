"""A session outside of a run: what adapts keeps its state (whole runs: `test_loop.py` and `test_difficulty.py`)."""

from collections.abc import Mapping
from typing import Any, cast

from smolsum.config.sections import Config
from smolsum.grpo.keeper import Keeper
from smolsum.grpo.optimizer import Optimizer
from smolsum.grpo.progress import Progress
from smolsum.grpo.session import Session
from smolsum.grpo.stateful import Stateful


class Weight(Stateful):
    """A part whose whole state is a number."""

    name = "weight"

    def __init__(self, value: float | None) -> None:
        self.value = value

    def state(self) -> Any:
        return self.value

    def load(self, state: Any) -> None:
        self.value = state


def saved(part: Stateful, state: dict[str, Any]) -> Mapping[str, Any]:
    """What a checkpoint has of a stage that went on from this state, once the part has `changed`."""
    found: list[Mapping[str, Any]] = []

    class Saving(Keeper):
        def save(self, policy: Any, optimizer: Any, state: Mapping[str, Any], *, leaving: bool) -> None:
            found.append(state)

    with Progress(quiet=True) as progress:
        session = Session(Config(), Saving(progress))
        session.setup = cast(Any, type("Nothing", (), {"policy": None}))
        session.state = state
        session.adopt(part)
        session._save(cast(Optimizer, None))
    return found[0]


def test_a_state_of_zero_is_a_state() -> None:
    """It is saved, and loaded in place of what a part begins with; None is nothing to keep."""
    assert saved(Weight(0.0), {}) == {"weight": 0.0}
    assert saved(part := Weight(1.0), {"weight": 0.0, "other": 2}) == {"weight": 0.0, "other": 2}
    assert part.value == 0.0
    assert saved(Weight(None), {}) == {}
