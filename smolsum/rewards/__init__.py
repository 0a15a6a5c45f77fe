"""The reward signals that any task can offer, by name; a task adds its own (`TaskRewards.signals`).

To add one, write `rewards/<name>.py` with a pure function on plain values, which evaluation calls too, and a `Scorer`
(`signal.py`) next to it. Add a line to `REWARDS` and to `MEANINGS`, the name to the help of `--reward`, to
`LENGTH_SIGNALS` if a text is worth less because it is long or cut, and to `COMPARED` if it needs references. A scorer
gets the whole step at once, so that it can call a judge or depend on the batch; that of a `Dependent` also gets other
signals' values. It returns P lists of G values in the order of the groups and their rollouts, None for a value that
could not be computed: missing is never 0. Import metric libraries inside the functions.
"""

from smolsum.rewards.grounded import score_grounded
from smolsum.rewards.length import score_length, score_overlong
from smolsum.rewards.meteor import score_meteor
from smolsum.rewards.overlap import score_bleu, score_rouge
from smolsum.rewards.signal import Signal

REWARDS: dict[str, Signal] = {
    "length": score_length,
    "rouge": score_rouge,
    "meteor": score_meteor,
    "bleu": score_bleu,
    "grounded": score_grounded,
    "overlong": score_overlong,
}
COMPARED = ("rouge", "meteor", "bleu")
"""those that compare with references, missing for a prompt without any"""
MEANINGS = {
    "bleu": ("BLEU", "[0, 1]", "n-gram precision against the reference, with a brevity penalty"),
    "rouge": ("ROUGE-L", "[0, 1]", "F1 of the longest common subsequence with the reference"),
    "meteor": ("METEOR", "[0, 1]", "unigram precision and recall with stems and synonyms, less for broken order"),
    "length": ("length", "(-∞, 0]", "distance from the target, in targets, negative"),
    "overlong": ("overlong", "[-1, 0]", "soft punishment for the last tokens before the limit"),
    "grounded": ("grounded", "[0, 1]", "share of names and numbers that the source has; 1/2 where none is stated"),
    "judge": ("judge", "[0, 1]", "a judge's mean score over the criteria"),
    "preference": ("preference", "[0, 1]", "a judge's score, compared with the others of the group"),
}
"""title, range and meaning of each, for reports"""
LENGTH_SIGNALS = ("length", "overlong")
"""those that depend on a completion's length, or on whether it was cut: stages that train them learn from truncated
completions too (`grpo.mask_truncated`)"""
