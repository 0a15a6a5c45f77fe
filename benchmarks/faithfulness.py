"""Whether the measure of names and numbers tells honest summaries from those that were made wrong.

    uv run python benchmarks/faithfulness.py ./my-data --split validation
    uv run python benchmarks/faithfulness.py OWNER/NAME --prompt-column article --completion-column summary

The honest summaries are the references of a data set. Each is corrupted by rules that know nothing of the measure:

    numbers  every number becomes another one, as long as before
    names    every capitalised word inside a sentence becomes one of another post
    terms    every word with capitals inside (BERT, PyTorch) becomes one of another post
    all      all three

A name of another post may be one that this post has too: such a summary is wrong, and the measure cannot see it.

`higher` is the share of summaries whose reward `grounded` is above that of their corruption; `equal` and `lower` are
the rest. `AUC` compares the honest with the corrupted ones of all posts; equal values count a half. `of whole` is
`higher` among the summaries whose names and numbers their post has all.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from scipy.stats import mannwhitneyu

from smolsum import console
from smolsum.config.sections import DataConfig
from smolsum.errors import SmolsumError
from smolsum.rewards.grounded import grounded_reward, supported_share
from smolsum.tasks.ab_judge.corruption import FAULTS, WORD, Edit, Passage, names_in
from smolsum.tasks.data import Example, load_split

TERM = re.compile(r"\b[A-Za-z]+[A-Z][A-Za-z]*\b")
KINDS: Mapping[str, tuple[str, ...]] = {
    "numbers": ("number",), "names": ("name",), "terms": ("term",), "all": ("term", "name", "number"),
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """An honest summary, its corruption, and their post."""

    honest: str
    corrupted: str
    source: str


def edits(text: str, kind: str, names: Sequence[str], terms: Sequence[str], rng: random.Random) -> Iterator[Edit]:
    """Yield the edits that replace everything of one kind."""
    if kind != "term":
        yield from FAULTS[kind](Passage(text, tuple(WORD.finditer(text)), names), rng)
        return
    for found in TERM.finditer(text):
        if others := [term for term in terms if term.rstrip("s") != found[0].rstrip("s")]:  # GANs is no other than GAN
            yield Edit(found.start(), found.end(), rng.choice(others))


def corrupted(text: str, kinds: Sequence[str], names: Sequence[str], terms: Sequence[str], rng: random.Random) -> str:
    """Return the text with everything of these kinds replaced; of two edits of the same words the first kind counts."""
    found: list[Edit] = []
    for kind in kinds:
        for edit in edits(text, kind, names, terms, rng):
            if all(edit.end <= other.start or other.end <= edit.start for other in found):
                found.append(edit)
    for edit in sorted(found, key=lambda one: one.start, reverse=True):
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text


def pairs_of(examples: Sequence[Example], seed: int) -> dict[str, list[Pair]]:
    """Return the pairs of each kind, without the references that have nothing of the kind."""
    rng = random.Random(seed)
    names = [names_in([one.source]) for one in examples]
    terms = [tuple(dict.fromkeys(TERM.findall(one.source))) for one in examples]
    found: dict[str, list[Pair]] = {kind: [] for kind in KINDS}
    for place, example in enumerate(examples):
        other_names, other_terms = (
            [word for n, words in enumerate(found_in) if n != place for word in words] for found_in in (names, terms)
        )
        for reference in example.references:
            for kind, parts in KINDS.items():
                changed = corrupted(reference, parts, other_names, other_terms, rng)
                if changed != reference:
                    found[kind].append(Pair(reference, changed, example.source))
    return found


def row(kind: str, pairs: Sequence[Pair]) -> list[str]:
    """Return the figures of one kind as cells."""
    both = [(grounded_reward(one.honest, one.source), grounded_reward(one.corrupted, one.source)) for one in pairs]
    whole = [(a, b) for a, b in both if a == 1]
    honest, wrong = zip(*both, strict=True)
    area = mannwhitneyu(honest, wrong).statistic / len(both) ** 2
    return [
        kind, str(len(pairs)), f"{fmean(honest):.3f}", f"{fmean(wrong):.3f}", f"{fmean(a > b for a, b in both):.1%}",
        f"{fmean(a == b for a, b in both):.1%}", f"{fmean(a < b for a, b in both):.1%}", f"{area:.3f}",
        f"{fmean(a > b for a, b in whole):.1%} of {len(whole)}" if whole else "-",
    ]  # fmt: skip


def main() -> None:
    """Print the value of the references, and a row for each kind of corruption."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a data set as `data.path` takes it: a file, a directory or a hub id")
    parser.add_argument("--split", default="test", choices=("train", "validation", "test"))
    parser.add_argument("--prompt-column", default="prompt")
    parser.add_argument("--completion-column", default="completion")
    parser.add_argument("--seed", type=int, default=0, help="of the corruptions")
    given = parser.parse_args()
    data = DataConfig(
        path=given.data, prompt_column=given.prompt_column, completion_column=given.completion_column,
        empty_texts="drop", long_prompts="drop",
    )  # fmt: skip
    try:
        split = load_split(data, given.split)
    except SmolsumError as exc:
        console.error(exc)
        sys.exit(exc.exit_code)
    shares = [supported_share(text, one.source) for one in split.examples for text in one.references]
    stated = [share for share in shares if share is not None]
    if not stated:
        sys.exit("error: no reference has a name or a number" if shares else "error: the data have no references")
    print(
        f"{len(split.examples)} posts, {len(shares)} references, {len(stated)} of them with a name or a number:"
        f" supported {fmean(stated):.3f}, all of it in {fmean(share == 1 for share in stated):.1%}\n"
    )
    names = ("corrupted", "pairs", "honest", "wrong", "higher", "equal", "lower", "AUC", "of whole")
    print("| " + " | ".join(names) + " |\n|" + " --- |" * len(names))
    for kind, pairs in pairs_of(split.examples, given.seed).items():
        if pairs:
            print("| " + " | ".join(row(kind, pairs)) + " |", flush=True)


if __name__ == "__main__":
    main()
