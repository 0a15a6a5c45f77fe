"""The reward signals that any task can offer, by name; a task adds its own (`TaskRewards.signals`).

To add one, write `rewards/<name>.py` with a pure function on plain values, which evaluation calls too, and a `Scorer`
(`signal.py`) next to it that carries its facts (`described`), and add it to `REWARDS`. A scorer gets the whole step at
once, so that it can call a judge or depend on the batch; that of a `Dependent` also gets other signals' values. It
returns P lists of G values in the order of the groups and their rollouts, None for a value that could not be computed:
missing is never 0. Import metric libraries inside the functions.
"""

from smolsum.rewards.grounded import score_grounded
from smolsum.rewards.judge import JUDGED
from smolsum.rewards.length import score_length, score_overlong
from smolsum.rewards.meteor import score_meteor
from smolsum.rewards.overlap import score_bleu, score_rouge
from smolsum.rewards.signal import Signal, facts_of

REWARDS: dict[str, Signal] = {
    "bleu": score_bleu,
    "rouge": score_rouge,
    "meteor": score_meteor,
    "length": score_length,
    "overlong": score_overlong,
    "grounded": score_grounded,
}
FACTS = {name: facts_of(signal) for name, signal in REWARDS.items()} | JUDGED
"""of these, and of the signals that ask a judge"""
