"""How early the guard speaks, and how often for nothing: runs that collapse, and runs that do not.

    uv run python benchmarks/guard.py --seeds 4

Trains `tiny` with rewards that can be had without a good summary (`cases/proxies.py`) and with rewards that are meant,
each with several seeds. Finished runs are not trained again. Which runs collapsed is not a matter of what was intended:
greedy summaries of 100 validation posts, every 10 steps, are compared with those of the start, and a run counts from
the validation on after which one of `COLLAPSE` holds until its end.

An alarm is judged at the threshold that would have been chosen on the other seeds: the lowest that warns of at most 5 %
of the runs that do not collapse. What `--guard warn` does, 3 standard errors in both, has rows too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from smolsum.files import read_jsonl
from smolsum.runs.paths import RunPaths
from smolsum.runs.typed_json import has_scores, read_summary

PROXIES = Path(__file__).parent / "cases" / "proxies.py"
FREE = ("--strategy=constrained", "--constraint=none", "--set=stages.constrained.temperature=1")
RATE = "--set=optimizer.learning_rate=1e-4"
"""a quarter of the built-in model's own, at which most of the collapses take less than 20 steps"""
WAYS: dict[str, tuple[str, ...]] = {
    **{name: (*FREE, f"--reward={name}") for name in ("plain", "details", "covers", "brevity", "precise")},
    "details-meteor": (*FREE, "--reward=details-meteor"),
    "plain-meteor": (*FREE, "--reward=plain-meteor"),
    "fast": (*FREE, "--reward=rouge", "--set=optimizer.learning_rate=3e-3", "--set=grpo.beta=0"),
    "meteor": (*FREE, "--reward=meteor"),
    **{f"included-{name}": ("--strategy=included", f"--reward={name}") for name in ("meteor", "rouge", "bleu")},
    **{f"constrained-{name}": ("--strategy=constrained", f"--reward={name}") for name in ("meteor-rouge", "bleu")},
    "length": ("--strategy=included", "--reward=length"),
}
COLLAPSE: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "METEOR 10 % below": ("meteor", lambda now, start: now < 0.9 * start),
    "wrong facts 3 points above": ("facts/wrong_share", lambda now, start: now > start + 0.03),
    "repeated trigrams 10 points above": ("repeated_trigrams", lambda now, start: now > start + 0.1),
}
"""ground truth that nobody asked to lose, in terms of the value at a validation and at the start"""
Signal = Callable[[Mapping[str, Any]], float]
"""of a step's metrics, higher for worse"""


def _worst(*parts: str, without: Collection[str] = ()) -> Signal:
    """The largest value over measures, except some, of the least of these parts of it."""

    def of(row: Mapping[str, Any]) -> float:
        names = {key.removeprefix("guard/").rsplit("/", 1)[0] for key in row if key.endswith("/rise")}
        return max((min(row[f"guard/{name}/{part}"] for part in parts) for name in names - {*without}), default=0.0)

    return of


NO_COLLAPSE = ("within_tol", "copied")
"""a lost length and more copying, which `COLLAPSE` does not count"""
SIGNALS: dict[str, Signal] = {
    "the guard: rise and pull": _worst("rise", "pull"),
    "without length and copying": _worst("rise", "pull", without=NO_COLLAPSE),
    "rise alone": _worst("rise"),
    "pull alone": _worst("pull"),
    "KL": lambda row: float(row.get("kl") or 0.0),
    "entropy, falling": lambda row: -float(row.get("entropy") or 0.0),
}
LEVEL = 3.0  # of the guard, as it is
FALSE = 0.05


@dataclass(frozen=True)
class Run:
    """What a run did."""

    name: str
    seed: int
    rows: Sequence[Mapping[str, Any]]
    collapsed: int | None
    """the first step of the collapse"""
    why: str

    def alarm(self, signal: Signal, level: float) -> int | None:
        """The first step at which a signal is at the level."""
        return next((row["step"] for row in self.rows if signal(row) >= level), None)


def trained(name: str, seed: int, arguments: argparse.Namespace) -> Path:
    """Train a run, unless it is finished; return its directory."""
    root, flags = arguments.runs / f"{name}-{seed}", WAYS[name]
    stage = "included" if "--strategy=included" in flags else "constrained"
    place = [f"--plugin={PROXIES}", "--runs-dir", str(arguments.runs), "--quiet"]
    new = [
        "--model=tiny", RATE, *flags, f"--seed={seed}", f"--name={root.name}",
        f"--set=stages.{stage}.steps={arguments.steps}",
        "--set=train.validate_every=10", "--set=train.validation_prompts=100", "--set=train.checkpoint_every=1000",
    ]  # fmt: skip
    if not has_scores(RunPaths(root).stage_evaluation(stage)):
        flags_of_run = ["--resume", root.name, *place] if root.exists() else [*new, *place]
        subprocess.run([sys.executable, "-m", "smolsum", "train", *flags_of_run], check=True, stdout=subprocess.DEVNULL)
    return root


def read(root: Path, name: str, seed: int) -> Run:
    """What is known of a run: its steps, and when it collapsed."""
    rows = read_jsonl(root / "metrics.jsonl")
    start = read_summary(RunPaths(root).stage_evaluation("start")).metrics
    found = []
    for why, (metric, is_worse) in COLLAPSE.items():
        step = None
        for row in rows:
            if (now := row.get(f"validation/{metric}")) is None:
                continue
            step = (step or row["step"]) if is_worse(now, start[metric]) else None
        if step:
            found.append((step, why))
    step, why = min(found, default=(None, ""))
    return Run(name, seed, rows, step, why)


def chosen(signal: Signal, runs: Sequence[Run]) -> float:
    """The lowest level that warns of at most `FALSE` of the runs that do not collapse."""
    peaks = sorted(max(map(signal, run.rows)) for run in runs if run.collapsed is None)
    if not peaks:
        return float("inf")
    allowed = int(FALSE * len(peaks))
    return float(np.nextafter(peaks[len(peaks) - 1 - allowed], np.inf))


def line(title: str, signal: Signal, runs: Sequence[Run], level: float | None) -> str:
    """A row of the table: false alarms, and how long before the collapse the alarm came."""
    alarms = {}
    for run in runs:
        own = chosen(signal, [one for one in runs if one.seed != run.seed]) if level is None else level
        alarms[run.name, run.seed] = run.alarm(signal, own)
    sound = [run for run in runs if run.collapsed is None]
    false = sum(alarms[run.name, run.seed] is not None for run in sound)
    leads = [
        run.collapsed - step
        for run in runs
        if run.collapsed is not None and (step := alarms[run.name, run.seed]) is not None
    ]
    collapsed = len(runs) - len(sound)
    early = sum(lead >= 0 for lead in leads)
    lead = f"{median(leads):+.0f}, {min(leads):+d} to {max(leads):+d}" if leads else "-"
    return f"| {title} | {false} of {len(sound)} | {len(leads)} of {collapsed} | {early} of {collapsed} | {lead} |"


def main() -> None:
    """Train what is missing, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--steps", type=int, default=160, help="steps of each run")
    parser.add_argument("--runs", type=Path, default=Path("runs/guard"), help="folder of the runs")
    arguments = parser.parse_args()
    if arguments.seeds < 2:
        parser.error("thresholds are chosen on other seeds: --seeds 2 or more")
    seeds = range(1, arguments.seeds + 1)
    runs = [read(trained(name, seed, arguments), name, seed) for seed in seeds for name in WAYS]
    print("| reward | collapsed at step | the guard warned at step |\n| --- | --- | --- |")
    for name in WAYS:
        own = [run for run in runs if run.name == name]
        when = ", ".join("-" if run.collapsed is None else str(run.collapsed) for run in own)
        steps = [run.alarm(SIGNALS["the guard: rise and pull"], LEVEL) for run in own]
        why = " or ".join(sorted({run.why for run in own if run.why}))
        warned = ", ".join("-" if step is None else str(step) for step in steps)
        print(f"| {name} | {when}{f' ({why})' if why else ''} | {warned} |")
    print("\n| alarm | false alarms | alarms of collapses | before or with it | steps before |")
    print("| --- | --- | --- | --- | --- |")
    for title in list(SIGNALS)[:2]:
        print(line(f"{title}, at {LEVEL:g}", SIGNALS[title], runs, LEVEL))
    for title, signal in SIGNALS.items():
        print(line(f"{title}, at {FALSE:.0%}", signal, runs, None))


if __name__ == "__main__":
    main()
