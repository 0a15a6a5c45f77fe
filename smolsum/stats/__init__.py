"""From two or more evaluations to what may be said about their difference.

Every difference here is b - a: the treatment (b, given second) minus the baseline (a, given first), as in the study.
"""

from smolsum.stats.paired import Alternative, PairedResult, paired_ttest

__all__ = ["Alternative", "PairedResult", "paired_ttest"]
