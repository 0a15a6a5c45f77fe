"""Run directories made from figures: whole studies on disk without training, as a report reads them."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray
from support.places import GOLDEN

from smolsum.files import to_json
from smolsum.results.evaluate.storage import write_scores

CRITERIA = ("faithfulness", "coverage", "conciseness", "clarity")
JUDGE = "judge-a, 5 rounds, prompts 12345678"
PATHS = {"lfm": "LiquidAI/LFM2.5-350M", "qwen": "Qwen/Qwen2.5-0.5B-Instruct"}
LONG = "my roommate took the car without asking, and I do not know whether I should tell her about the repair. " * 4
Values = NDArray[np.float64]


def read_csv(name: str) -> list[dict[str, str]]:
    """The rows of a golden file."""
    with (GOLDEN / name).open() as file:
        return list(csv.DictReader(file))


def judged(columns: Mapping[str, Sequence[float]], texts: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Rows of a scores file from columns of numbers."""
    n = len(next(iter(columns.values())))
    return [
        {
            "id": f"test-{i:04d}", "split": "test", "data": "d1", "text": texts[i] if texts else f"summary {i}",
            **{name: float(values[i]) for name, values in columns.items()}, "judge": JUDGE,
        }
        for i in range(n)
    ]  # fmt: skip


def evaluation(folder: Path, rows: Sequence[Mapping[str, Any]], metrics: Mapping[str, Any], **more: Any) -> None:
    """An evaluation by the judge on the test split."""
    origin = {
        "label": folder.name,
        "split": "test",
        "sampler": "greedy",
        "tokenizer": "t1",
        "data": {"test": {"split": "test", "fingerprint": "d1", "prompts": "p1"}},
        "meteor": "wordnet",
        "judge": JUDGE,
        "score": "composite",
        "criteria": list(CRITERIA),
        "headlines": [
            {"metric": key, "title": title, "text": f"{metrics[key]:.3f}"}
            for key, title in (("meteor", "METEOR"), ("length/within_tol", "on target"))
            if metrics.get(key) is not None
        ],
        "errors": {"too long": "above the tolerance", "copied": "over half of the words in runs of the post"},
        "judging": {
            "model": "judge-a",
            "rounds": 5,
            "prompts": dict.fromkeys(CRITERIA, "0123456789abcdef"),
            "thresholds": dict.fromkeys(CRITERIA, 0.5),
            "usage": {"calls": 40, "input_tokens": 900, "output_tokens": 80, "cached": 0, "dollars": None},
            "missing": [],
            "noise": {k: {"n": 2, "round_sd": 0.05, "icc": 0.9, "icc_mean": 0.98} for k in (*CRITERIA, "composite")},
        },
        **more,
    }
    write_scores(folder, rows, metrics, {key: value for key, value in origin.items() if value is not None}, "again")


def run(
    runs: Path, name: str, model: str, stages: Mapping[str, Sequence[str]], rows: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, Any], *, seed: int = 0, state: str = "finished", steps: int = 4,
) -> Path:  # fmt: skip
    """A run of some steps a stage, with the evaluation of its last."""
    root = runs / name
    last = steps * len(stages)
    (root / "completions").mkdir(parents=True)
    config = {
        "run": {"name": name, "dir": "runs"},
        "model": {"path": model, "dtype": "bfloat16"},
        "data": {"path": "mlabonne/smoltldr", "max_input_tokens": 512},
        "task": {"name": "tldr", "target_tokens": 64, "tolerance_tokens": 5},
        "grpo": {"loss": "grpo", "eps_low": 0.2, "eps_high": 0.2, "beta": 1e-4},
        "optimizer": {"name": "adamw", "learning_rate": 2e-6, "max_grad_norm": 1.0},
        "train": {"seed": seed, "prompts_per_step": 2, "accumulation_steps": 1},
        "stages": {
            stage: {"steps": steps, "rewards": dict.fromkeys(signals, 1.0)} for stage, signals in stages.items()
        },
    }
    (root / "config.toml").write_text(tomli_w.dumps(config))
    info = {
        "argv": ["smolsum", "train", "--model=any", "--set=stages.quality.steps=4", "--set", "task.target_tokens=64"],
        "steps": dict.fromkeys(stages, steps),
        "fingerprints": dict.fromkeys(stages, "f"),
        "model": {"path": model, "dtype": "bfloat16", "weights": "w1"},
        "tokenizer": "t1",
        "corpus": {
            split: {"examples": n, "posts": _sizes(260.7), "references": _sizes(25.2)}
            for split, n in (("train", 2000), ("validation", 200), ("test", 200))
        },
        "versions": {"smolsum": "0.1.0"},
        "machine": {"system": "a machine"},
    }
    (root / "run.json").write_text(json.dumps(info))
    (root / "status.json").write_text(json.dumps({"state": state, "step": last}))
    rewarded = [signals for signals in stages.values() for _ in range(steps)]
    lines = [
        {
            "step": step, "stage": "s", "loss": 0.1 / step, "grad_norm": 2.0 / step, "kl": 0.001 * step, "entropy": 1.0,
            "clip_ratio/region_mean": 0.0, "reward": step / 10, "reward_std": 0.3, "frac_reward_zero_std": 0.0,
            "advantages/mean": 0.0, "advantages/std": 0.9, "completions/mean_length": 90.0 - step,
            "completions/min_length": 40.0, "completions/max_length": 128.0,
            "length/within_tol": 0.1 * step / last, "perf/step_s": 60.0,
            **{f"rewards/{name}/mean": 0.5 + 0.1 * step / last for name in rewarded[step - 1]},
        }
        for step in range(1, last + 1)
    ]  # fmt: skip
    (root / "metrics.jsonl").write_bytes(b"".join(to_json(line) for line in lines))
    asked = {
        "prompt_id": "train-1",
        "messages": [{"role": "user", "content": "A long | post."}],
        "references": ["Short."],
    }
    (root / "completions" / "step-000001.jsonl").write_bytes(to_json(asked))
    weights = {"path": model, "dtype": "bfloat16", "weights": "w1"}
    evaluation(root / "eval" / f"{list(stages)[-1]}-test", rows, metrics, model=weights, step=last)
    return root


def _sizes(mean: float) -> dict[str, float]:
    return {"mean": mean, "std": 2.1, "min": 21.0, "p50": 25.0, "p90": 28.0, "p95": 29.0, "p99": 32.0, "max": 36.0}


def stages_of(table: str, configuration: str) -> dict[str, list[str]]:
    """The stages of a configuration of the study."""
    if configuration == "length-only":
        return {"length": ["length"]}
    signals = configuration.rpartition("quality-")[2].replace("rouge-l", "rouge").split("-")
    return {"length": ["length"], "quality": signals} if table in ("10", "12") else {"included": ["length", *signals]}


def the_study(runs: Path) -> None:
    """The study of `golden/study_results.csv` and `study_lengths.csv`: 26 runs of 200 examples whose means, differences
    and t are those printed, to the last digit that is."""
    lengths = {(row["model"], row["configuration"]): row for row in read_csv("study_lengths.csv")}
    rng = np.random.default_rng(7)
    for model in PATHS:
        rows = [row for row in read_csv("study_results.csv") if row["model"] == model]
        mean, deltas = _means([row for row in rows if row["delta"]], float(rows[0]["average"]))
        noise = rng.normal(size=200)
        base = mean + 0.3 * (noise - noise.mean())
        made = set()
        for row in rows:
            if (name := row["configuration"]) in made:
                continue
            made.add(name)
            composite = base
            if row["delta"]:
                composite = base + _differences(deltas[name], row, rng)
            columns = {"composite": composite, **{k: _with_mean(float(row[k]), rng) for k in CRITERIA}}
            columns["pass_rate"] = np.full(200, float(row["pass_rate"].rstrip("%")) / 100)
            metrics = {key: float(np.mean(values)) for key, values in columns.items()}
            if found := lengths.get((model, name)):
                metrics |= {f"completions/{k}_length": float(found[k]) for k in ("mean", "std", "min", "max")}
                metrics |= {f"completions/p{p}_length": float(found[f"p{p}"]) for p in (50, 90, 95, 99)}
                drawn = np.random.default_rng(11).normal(float(found["mean"]), float(found["std"]), size=200)
                columns["tokens"] = np.clip(np.round(drawn), float(found["min"]), float(found["max"]))
                metrics["length/within_tol"] = int(found["within"].split("/")[0]) / 200
            examples = judged(columns, [f"Summary {i}: {LONG}" for i in range(200)])
            run(runs, f"{model}-{name}", PATHS[model], stages_of(row["table"], name), examples, metrics, steps=500)


def _means(rows: Sequence[Mapping[str, str]], printed: float) -> tuple[float, dict[str, float]]:
    """A baseline's mean, and each difference, that print as the study has them: all roundings agree at once."""
    for mean in np.linspace(printed - 4.9e-4, printed + 4.9e-4, 197):
        found = {}
        for row in rows:
            delta, average = float(row["delta"]), float(row["average"])
            low = max(delta - 4.5e-5, average - 4.9e-4 - mean)
            high = min(delta + 4.5e-5, average + 4.9e-4 - mean)
            if low > high:
                break
            found[row["configuration"]] = float(min(max(delta, low), high))
        else:
            return float(mean), found
    raise AssertionError(f"the printed averages and differences contradict each other at {printed}")


def _differences(delta: float, row: Mapping[str, str], rng: np.random.Generator) -> Values:
    """200 differences with this mean whose t and p print as in the row."""
    from scipy import stats

    printed_t, printed_p = float(row["t"]), float(row["p"])
    digits = ".2e" if printed_p < 0.001 else ".4f"
    t = min(
        np.linspace(printed_t - 4.9e-5, printed_t + 4.9e-5, 99),
        key=lambda t: (f"{2 * stats.t.sf(abs(t), 199):{digits}}" != f"{printed_p:{digits}}", abs(t - printed_t)),
    )
    noise = rng.normal(size=200)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    return np.asarray(delta + delta * math.sqrt(200) / float(t) * noise)


def _with_mean(mean: float, rng: np.random.Generator) -> Values:
    noise = rng.normal(scale=0.02, size=200)
    return np.asarray(mean + noise - noise.mean())
