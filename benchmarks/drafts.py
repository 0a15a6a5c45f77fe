"""Whether drafts would make sampling faster: what a finished run would have accepted, and what its passes cost.

    uv run smolsum train --set data.train_rows=40 --set train.keep_checkpoints=100 --set run.name=few
    uv run python benchmarks/drafts.py runs/few --rows 8 16 32 --shapes tiny 0.5b

A draft proposes the tokens that come next, and one pass verifies several of them. Each position has its own uniform
number, so the tokens are those of plain sampling. Drafts come from n-grams of the prompt, of its rollouts in earlier
steps, and of its other rollouts as far as they are: `prefix` continues an earlier rollout that began alike, `latest`
takes what last followed the longest match, `matched` draws from the counts after the two longest matches with the
uniform number of the position itself.

Speed-ups are upper bounds: drafts take no time, the end of each rollout is known, and whether a later token of a draft
is likely to be right is estimated as if the earlier ones were. By default passes are timed by the CPU time of one
thread, which other programs hardly change; `--threads 2` takes the time on the wall, for a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

import smolsum
from smolsum.policy.cpu import decode, native
from smolsum.policy.load import load_policy
from smolsum.policy.sampling import generate

sys.path.insert(0, str(Path(__file__).parent / "cases"))
from random_qwen2 import random_qwen2
from shapes import SHAPES

POLICIES = ("prefix", "latest", "matched")
LONGEST = 6
"""tokens of a match"""
DRAFTED = (1, 2, 3, 4, 8)
ROWS = (1, 8, 16, 32, 48, 64)
"""of the passes that are timed; a pass has at most 64"""
DEEPEST = 15
"""tokens of a draft whose length is chosen"""
EPOCHS = ((0, "first"), (1, "second"), (2, "third to fifth"), (5, "later"))
PROMPT, PASSES, QUARTER = 120, 12, 4


@dataclass(frozen=True)
class Guess:
    """Whether the token proposed at a position is right; None where nothing is proposed. `kind` has guesses that are
    about as likely to be right."""

    right: bool | None
    kind: tuple[int, int] = (0, 0)


@dataclass
class Followed:
    """A rollout, the guesses of each policy at its positions, and its phase."""

    tokens: tuple[int, ...]
    uniforms: Any
    phase: str
    guesses: dict[str, list[Guess]] = field(default_factory=lambda: {name: [] for name in POLICIES})


class Ngrams:
    """What followed each match of up to `LONGEST` tokens."""

    def __init__(self) -> None:
        self.counts: defaultdict[tuple[int, ...], dict[int, int]] = defaultdict(dict)
        self.latest: dict[tuple[int, ...], int] = {}

    def add(self, ids: Sequence[int], place: int) -> None:
        """Count the token at this place."""
        for n in range(1, min(LONGEST, place) + 1):
            match = tuple(ids[place - n : place])
            self.latest[match] = token = ids[place]
            self.counts[match][token] = self.counts[match].get(token, 0) + 1

    def matches(self, ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yield what ends these ids and occurred before, the longest first."""
        for n in range(min(LONGEST, len(ids)), 0, -1):
            if (match := tuple(ids[-n:])) in self.latest:
                yield match

    def distribution(self, ids: Sequence[int]) -> tuple[dict[int, float], int]:
        """Return the shares after the two longest matches, mixed as by Witten and Bell (1991), and the longer one's
        length, or 0."""
        shares: dict[int, float] = {}
        found = [match for match, _ in zip(self.matches(ids), range(2), strict=False)]
        for match in reversed(found):
            counts = self.counts[match]
            total, kinds = sum(counts.values()), len(counts) if shares else 0
            shares = {token: share * kinds / (total + kinds) for token, share in shares.items()}
            for token, count in counts.items():
                shares[token] = shares.get(token, 0.0) + count / (total + kinds)
        return shares, len(found[0]) if found else 0


def guesses(grams: Ngrams, begun: dict[tuple[int, ...], int], ids: list[int], start: int, one: Followed) -> None:
    """Add each policy's guess of the next token, after the prompt (the first `start` ids) and the tokens so far."""
    place = len(ids) - start
    token = one.tokens[place]
    known = begun.get(tuple(ids[start:]))
    one.guesses["prefix"].append(Guess(None if known is None else known == token))
    match = next(grams.matches(ids), ())
    one.guesses["latest"].append(Guess(grams.latest[match] == token, (len(match), 0)) if match else Guess(None))
    shares, length = grams.distribution(ids)
    if not shares:
        one.guesses["matched"].append(Guess(None))
        return
    order = sorted(shares)
    place_in = np.searchsorted(np.cumsum([shares[t] for t in order]), one.uniforms[place], side="right")
    drawn = order[min(int(place_in), len(order) - 1)]
    one.guesses["matched"].append(Guess(drawn == token, (length, int(10 * shares[drawn]))))


def follow(groups: Sequence[tuple[str, Sequence[int], list[Followed]]]) -> None:
    """Guess all tokens of groups of rollouts, each with its prompt's id and tokens, in the order of sampling; the
    rollouts of a group are at the same position."""
    grams: defaultdict[str, Ngrams] = defaultdict(Ngrams)
    begun: defaultdict[str, dict[tuple[int, ...], int]] = defaultdict(dict)
    for key, prompt, members in groups:
        known = grams[key]
        if not known.latest:
            for place in range(1, len(prompt)):
                known.add(prompt, place)
        texts = [[*prompt, *one.tokens] for one in members]
        for place in range(len(prompt), max(map(len, texts))):
            for one, text in zip(members, texts, strict=True):
                if place < len(text):
                    guesses(known, begun[key], text[:place], len(prompt), one)
            for text in texts:
                if place < len(text):
                    known.add(text, place)
        for one in members:
            begun[key] |= {one.tokens[:place]: token for place, token in enumerate(one.tokens)}


# ---- runs ----


def training(root: Path) -> list[list[Followed]]:
    """Return the rollouts of each step of a run, with guesses."""
    config = smolsum.make_config(config_file=root / "config.toml")
    policy = load_policy(config.model.path)
    prompts = {prompt.id: prompt.token_ids for prompt in smolsum.load_prompts(policy, config, "train")}
    stages = {row["step"]: row["stage"] for row in _rows(root / "metrics.jsonl") if "stage" in row}
    times: defaultdict[str, int] = defaultdict(int)
    steps: list[list[Followed]] = []
    ordered: list[tuple[str, Sequence[int], list[Followed]]] = []
    for file in sorted((root / "completions").glob("step-*.jsonl")):
        groups: defaultdict[str, list[Any]] = defaultdict(list)
        for row in _rows(file):
            groups[row["prompt_id"]].append(row)
        stage = stages.get(int(file.stem.partition("-")[2]), "unknown stage")
        rank = min(times[key] for key in groups)
        epoch = [name for least, name in EPOCHS if rank >= least][-1]
        members: list[Followed] = []
        for key, rows in groups.items():
            made = [
                Followed(
                    tuple(row["token_ids"]),
                    np.random.default_rng(row["seed"]).random(config.sampling.max_new_tokens, dtype=np.float32),
                    f"{stage}, {epoch} epoch",
                )
                for row in rows
            ]
            ordered.append((key, prompts[key], made))
            members += made
            times[key] += 1
        steps.append(members)
    follow(ordered)
    return steps


def validations(root: Path) -> list[list[Followed]]:
    """Return the greedy completions of the validation prompts by each checkpoint of a run, with guesses."""
    config = smolsum.make_config(config_file=root / "config.toml")
    policy = load_policy(config.model.path)
    prompts = smolsum.load_prompts(policy, config, "validation")[: config.train.validation_prompts]
    rounds: list[list[Followed]] = []
    ordered: list[tuple[str, Sequence[int], list[Followed]]] = []
    for folder in sorted((root / "checkpoints").glob("step-*")):
        model = load_policy(str(folder)).model
        made = generate(
            model, [prompt.token_ids for prompt in prompts], [[0]] * len(prompts), eos_ids=policy.eos_ids,
            temperature=0, max_new_tokens=config.sampling.max_new_tokens,
        )  # fmt: skip
        middle = np.full(config.sampling.max_new_tokens, 0.5, np.float32)
        phase = f"validation, {'later' if rounds else 'first'}"
        rounds.append([Followed(one.token_ids, middle, phase) for (one,) in made])
        ordered += [(p.id, p.token_ids, [one]) for p, one in zip(prompts, rounds[-1], strict=True)]
    follow(ordered)
    return rounds


def _rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ---- what is accepted ----


def accepted(rollouts: Sequence[Followed], name: str, drafted: int) -> tuple[float, float]:
    """Return tokens for each pass of a sequence, and the accepted share of what was proposed."""
    passes = proposed = right = tokens = 0
    for one in rollouts:
        place, found = 0, one.guesses[name]
        tokens += len(found)
        while place < len(found):
            passes += 1
            chain = found[place : place + drafted]
            made = next((n for n, guess in enumerate(chain) if guess.right is None), len(chain))
            hits = next((n for n, guess in enumerate(chain) if not guess.right), len(chain))
            proposed, right, place = proposed + made, right + hits, place + hits + 1
    return tokens / passes, right / max(1, proposed)


def accepted_table(rollouts: Sequence[Followed]) -> None:
    """Print a row for each phase and policy."""
    print(f"\n| phase | draft | right | {' | '.join(f'{k} drafted' for k in DRAFTED)} |")
    print("| --- " * (3 + len(DRAFTED)) + "|")
    for phase in dict.fromkeys(one.phase for one in rollouts):
        chosen = [one for one in rollouts if one.phase == phase]
        for name in POLICIES:
            share = fmean(guess.right is True for one in chosen for guess in one.guesses[name])
            cells = " | ".join(f"{accepted(chosen, name, k)[0]:.2f}" for k in DRAFTED)
            print(f"| {phase} | {name} | {share:.2f} | {cells} |", flush=True)


# ---- what passes cost ----


def pass_seconds(model: Any, rows: int) -> float:
    """Return the seconds of one pass with this many rows, of the CPU on one thread, else on the wall: the least of a
    few."""
    clock = time.thread_time if native.threads() == 1 else time.perf_counter
    decoder = decode._Decoder(model, PROMPT + PASSES + 1)
    prefix = decoder.sequence(range(3, 3 + PROMPT))
    uniforms = np.full(PASSES, 0.5, np.float32)
    draws = [decode.Draw((5,), uniforms, 1.0)] * rows
    decoder.run([prefix], None)
    sequences = [decoder.sequence((5,), draw, prefix) for draw in draws]
    decoder.bytes, seconds = decode.CALL_BYTES, [float("inf")]  # one pass a call
    decode_run = decoder._library.decode_run

    def timed(*arguments: Any) -> int:
        start = clock()
        failed = int(decode_run(*arguments))
        seconds.append(clock() - start)
        return failed

    decoder._library = cast(Any, SimpleNamespace(decode_run=timed))
    decoder.run(sequences, [-1])
    return min(seconds)


def costs(shape: str, rounds: int) -> dict[int, float]:
    """Return the seconds of a pass by rows: the least of a few rounds.

    Of a large shape, one layer, three, and one with a larger vocabulary are timed, and the rest is calculated: short
    passes are disturbed less.
    """
    if shape not in SHAPES:
        model = load_policy(f"builtin:{shape}").model
        return {rows: min(pass_seconds(model, rows) for _ in range(rounds)) for rows in ROWS}
    whole = SHAPES[shape]
    few, some = 1024, whole.vocabulary // QUARTER
    one, three, headed = (
        random_qwen2(replace(whole, layers=layers, vocabulary=vocabulary), "float32")
        for layers, vocabulary in ((1, few), (3, few), (1, some))
    )
    found = {}
    for rows in ROWS:
        a, b, c = (min(pass_seconds(model, rows) for _ in range(rounds)) for model in (one, three, headed))
        found[rows] = whole.layers * (b - a) / 2 + (c - a) * whole.vocabulary / (some - few)
    return found


def cost_of(table: dict[int, float], most: int) -> list[float]:
    """Return the seconds that a number of rows takes, for 0 to `most` rows."""

    def part(rows: int) -> float:
        if rows <= 8:  # products are padded to 8 rows, attention is not
            return table[1] + (table[8] - table[1]) * (rows - 1) / 7 if rows else 0.0
        return table[next(size for size in ROWS if size >= rows)]

    return [rows // 64 * table[64] + part(rows % 64) for rows in range(most + 1)]


# ---- what both give ----


def seconds(batch: Sequence[Followed], cost: list[float], drafted: int | Callable[[Guess], float]) -> float:
    """Return the seconds to sample rollouts together, with so many `matched` tokens drafted for each, or as many as
    make most tokens a second, by how likely guesses are to be right."""
    places, total = [0] * len(batch), 0.0
    while active := [n for n, one in enumerate(batch) if places[n] < len(one.tokens)]:
        if isinstance(drafted, int):
            depths = {n: min(drafted, len(batch[n].tokens) - places[n] - 1) for n in active}
        else:
            depths = dict.fromkeys(active, 0)
            for n in chosen_drafts(batch, places, active, cost, drafted):
                depths[n] += 1
        total += cost[len(active) + sum(depths.values())]
        for n in active:
            chain = batch[n].guesses["matched"][places[n] : places[n] + depths[n]]
            places[n] += 1 + next((k for k, guess in enumerate(chain) if not guess.right), len(chain))
    return total


def chosen_drafts(
    batch: Sequence[Followed], places: list[int], active: list[int], cost: list[float], likely: Callable[[Guess], float]
) -> list[int]:
    """Return the sequence of each drafted token: the likeliest ones, as many as make most tokens a second."""
    offered = []
    for n in active:
        chance = 1.0
        for guess in batch[n].guesses["matched"][places[n] : places[n] + DEEPEST]:
            chance *= likely(guess)
            offered.append((chance, n))
    offered = sorted(offered, reverse=True)[: 2 * 64]
    expected = list(accumulate((chance for chance, _ in offered), initial=float(len(active))))
    rates = [tokens / cost[len(active) + drafts] for drafts, tokens in enumerate(expected)]
    return [n for _, n in offered[: rates.index(max(rates))]]


def speed_table(steps: Sequence[Sequence[Followed]], shapes: dict[str, list[float]], sizes: Sequence[int]) -> None:
    """Print the speed-up of each phase, for so many rollouts at a time."""
    print(f"\n| phase | rollouts | shape | {' | '.join(f'{k} drafted' for k in DRAFTED)} | chosen |")
    print("| --- " * (4 + len(DRAFTED)) + "|")
    tried: defaultdict[tuple[int, int], list[int]] = defaultdict(lambda: [1, 2])  # right and all, of each kind
    taken: defaultdict[tuple[str, int, str], list[float]] = defaultdict(lambda: [0.0] * (2 + len(DRAFTED)))

    def likely(guess: Guess) -> float:
        return 0.0 if guess.right is None else tried[guess.kind][0] / tried[guess.kind][1]

    ways: tuple[int | Callable[[Guess], float], ...] = (0, *DRAFTED, likely)
    for step in steps:
        for size in sizes:
            for start in range(0, len(step), size):
                for shape, cost in shapes.items():
                    sums, batch = taken[step[0].phase, size, shape], step[start : start + size]
                    for n, drafted in enumerate(ways):
                        sums[n] += seconds(batch, cost, drafted)
        for guess in (guess for one in step for guess in one.guesses["matched"] if guess.right is not None):
            tried[guess.kind][0] += bool(guess.right)
            tried[guess.kind][1] += 1
    for (phase, size, shape), sums in taken.items():
        print(f"| {phase} | {size} | {shape} | {' | '.join(f'{sums[0] / each:.2f}' for each in sums[1:])} |")


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="directory of a run whose prompts came several times")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 16, 32], help="rollouts sampled at a time")
    parser.add_argument("--shapes", nargs="+", default=["tiny", "0.5b"], help="a built-in model, or one of shapes.py")
    parser.add_argument("--rounds", type=int, default=5, help="times that passes are timed")
    parser.add_argument("--threads", type=int, default=1, help="of a pass")
    arguments = parser.parse_args()
    native.threads = lambda: arguments.threads
    print(f"| ms of a pass, rows | {' | '.join(map(str, ROWS))} |\n{'| --- ' * (1 + len(ROWS))}|")
    most = max(50, *arguments.rows) * (1 + max(DRAFTED)) + 2 * 64
    shapes = {}
    for shape in arguments.shapes:
        table = costs(shape, arguments.rounds)
        shapes[shape] = cost_of(table, most)
        print(f"| {shape} | {' | '.join(f'{1000 * table[rows]:.3g}' for rows in ROWS)} |", flush=True)
    steps = training(arguments.run)
    accepted_table([one for step in steps for one in step])
    speed_table(steps, shapes, arguments.rows)
    greedy = validations(arguments.run)
    accepted_table([one for step in greedy for one in step])
    speed_table(greedy, shapes, [50])


if __name__ == "__main__":
    main()
