"""A reward that is right or wrong, as those of tasks with one answer are."""

import smolsum


@smolsum.reward(range="0 or 1", meaning="1 for a summary of 59 to 69 tokens")
def in_band(completion_ids, **kwargs):
    # the token that ends a completion is one of its ids
    return [float(60 <= len(ids) <= 70) for ids in completion_ids]
