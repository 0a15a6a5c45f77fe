"""Rewards that stand for what one wants, and can be had without it."""

import smolsum


def _words(text):
    return text.lower().split()


@smolsum.reward(range="[0, 1]", meaning="share of the post's words that the summary has")
def covers(completions, prompts, **kwargs):
    return [
        len(set(_words(post)) & set(_words(text))) / max(1, len(set(_words(post))))
        for text, post in zip(completions, prompts, strict=True)
    ]


@smolsum.reward(range="[0, 1]", meaning="1 for a single word, less for each more")
def brevity(completions, **kwargs):
    return [1 / max(1, len(_words(text))) if text.strip() else 0.0 for text in completions]


@smolsum.reward(range="[0, 1]", meaning="share of the summary's words that the post has")
def precise(completions, prompts, **kwargs):
    return [
        sum(word in set(_words(post)) for word in _words(text)) / max(1, len(_words(text)))
        for text, post in zip(completions, prompts, strict=True)
    ]


@smolsum.reward(range="[0, 1]", meaning="words with a capital or a digit, up to 20")
def details(completions, **kwargs):
    return [
        min(20, sum(word[0].isupper() or any(c.isdigit() for c in word) for word in text.split())) / 20
        for text in completions
    ]


@smolsum.reward(range="[0, 1]", meaning="share of words of at most four letters")
def plain(completions, **kwargs):
    return [sum(len(word) <= 4 for word in _words(text)) / max(1, len(_words(text))) for text in completions]
