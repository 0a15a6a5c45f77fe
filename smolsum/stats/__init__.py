"""Tests between the scores of evaluations. Every difference is b - a: the treatment (given second) minus the baseline
(given first), as in the study."""

from smolsum.stats.paired import Alternative, PairedResult, paired_ttest

__all__ = ["Alternative", "PairedResult", "paired_ttest"]
