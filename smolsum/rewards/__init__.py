"""The reward signals that any task can offer, by name; a task adds its own (`Task.signals`).

To add one: write `rewards/<name>.py` with a pure function on plain values (the evaluation calls it too) and a
scorer of the `Scorer` type (`signal.py`) beside it, then add one line to `REWARDS`. A scorer sees the whole step at
once, so that it may call a judge or depend on the batch; it returns P lists of G values, in the order of the groups and
their rollouts, and `None` for a value that could not be computed (never 0, which would be a judgement). Importing this
package loads none of the metric libraries: a scorer imports its own on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smolsum.rewards.length import score_length, score_overlong
from smolsum.rewards.meteor import score_meteor
from smolsum.rewards.overlap import score_bleu, score_rouge

if TYPE_CHECKING:
    from smolsum.rewards.combine import Scorer

REWARDS: dict[str, Scorer] = {
    "length": score_length,
    "rouge": score_rouge,
    "meteor": score_meteor,
    "bleu": score_bleu,
    "overlong": score_overlong,
}
