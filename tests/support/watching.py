"""Made-up runs for the live view: numbers that follow from the step, times that stand still, screens."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from support.places import GOLDEN

from smolsum.files import read_jsonl, to_json
from smolsum.runs.paths import RunPaths

EXPECTED = GOLDEN / "watch"
BEGAN = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
STEP_S = 2.0
GROUP = 4
HEADLINES = {"completions/mean_length": "tokens", "length/within_tol": "on target", "meteor": "METEOR"}
MEASURES = [
    {"name": "length/within_tol", "title": "on target", "better": "higher", "role": "constraint"},
    {"name": "wrong", "title": "wrong", "better": "lower", "role": "quality"},
]
TEXTS = (
    "Mira wants to leave the flat in Ostby because the heating failed twice this winter.",
    "My flatmate broke the heating and I want to leave.",
    "The heating failed. The heating failed. The heating failed again and nobody came.",
    "Mira is upset about the heating in the flat and asks how to tell the landlord.",
)


def stamp(seconds: float) -> str:
    """A time of the made-up run, as a run's files have it."""
    return (BEGAN + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def row(step: int, total: int, **changes: Any) -> dict[str, Any]:
    """The metrics of a step of a run that learns: length first, then quality."""
    share = step / total
    stage = "length" if step <= total // 2 else "quality"
    wave = math.sin(step / 3)
    found: dict[str, Any] = {
        "step": step, "stage": stage, "stage_step": step if stage == "length" else step - total // 2,
        "loss": 0.02 * wave / (1 + 5 * share), "grad_norm": 1.6 * math.exp(-3 * share) + 0.2 + 0.1 * wave,
        "learning_rate": 4e-4 * (1 - share), "kl": 0.3 * share + 0.001, "entropy": 0.8 * math.exp(-share),
        "clip_ratio/low_mean": 0.0, "clip_ratio/high_mean": 0.0, "clip_ratio/region_mean": 0.0,
        "sampling/mismatch_k3": 1e-7 * (2 + wave),
        "update/skipped": 0.0, "update/visible_frac": 0.9, "update/lost_norm_frac": 1e-6,
        "reward": -0.6 * math.exp(-4 * share) + 0.03 * wave, "reward_std": 0.25 * math.exp(-share) + 0.02 * wave,
        "frac_reward_zero_std": 0.0,
        "rewards/length/mean": -0.6 * math.exp(-4 * share) - 0.1, "rewards/length/std": 0.2,
        "rewards/meteor/mean": 0.1 + 0.03 * wave, "rewards/meteor/std": 0.15,
        "completions/mean_length": 64 + 40 * math.exp(-5 * share) + 2 * wave,
        "completions/min_length": 40 + 10 * share, "completions/max_length": 130 - 50 * share + 4 * wave,
        "completions/clipped_ratio": 0.0, "completions/repeated_trigrams": 0.02,
        "length/within_tol": min(1.0, share * 1.5), "num_tokens": 1024.0,
        "perf/step_s": STEP_S, "perf/rollout_s": 1.1, "perf/score_s": 0.1, "perf/fwd_bwd_s": 0.7,
        "perf/optimizer_s": 0.05, "perf/peak_memory_gb": 0.21,
    }  # fmt: skip
    if step % 10 == 0:
        greedy = 60 + share if share > 0.5 else 66 + share
        found |= {"validation/reward": -0.4 * math.exp(-4 * share), "validation/length/within_tol": share}
        found |= {"validation/meteor": 0.2 + share / 4, "validation/completions/mean_length": greedy}
        found |= {"perf/validate_s": 0.5}
    return found | changes


def completions(step: int, total: int) -> list[dict[str, Any]]:
    """Two prompts with four rollouts each; the first prompt is the same in every step."""
    rows = []
    for group, prompt in enumerate(("train-0001", f"train-{step + 10:04}")):
        for sample in range(GROUP):
            length = -0.1 * sample
            found = {
                "prompt_id": prompt, "sample": sample, "text": TEXTS[(sample + (step > total // 2)) % GROUP],
                "token_ids": list(range(60 + 3 * sample - group)),
                "finish_reason": "length" if sample == 3 else "stop",
                "rewards": {"length": length, "meteor": 0.3 - 0.05 * ((sample + 1) % 3)},
                "reward": round(length + 0.3 - 0.05 * ((sample + 1) % 3), 4), "advantage": 1.2 - 0.8 * sample,
                "worker": "local", "policy_version": step - 1, "seed": sample,
            }  # fmt: skip
            if sample == 0:
                post = f"I share a flat in Ostby with Mira ({prompt}). The heating failed twice and nobody came."
                found |= {
                    "messages": [{"role": "system", "content": "Summarise."}, {"role": "user", "content": post}],
                    "references": ["The heating in our flat fails and I want to move out."],
                }
            rows.append(found)
    return rows


def status(run: Path, state: str, step: int, total: int, **changes: Any) -> None:
    """Writes what the run says of itself; by default its process is on another machine."""
    found = {
        "schema_version": 1, "state": state, "step": step, "phase": "training",
        "stage": "length" if step <= total // 2 else "quality", "attempt": 1, "pid": 4242, "host": "mini-1",
        "steps": total, "heartbeat": stamp(30 + step * STEP_S),
    }  # fmt: skip
    (run / "status.json").write_bytes(to_json(found | changes, indent=2))


def append(path: Path, rows: list[dict[str, Any]]) -> None:
    """Adds lines to a JSON Lines file."""
    with path.open("ab") as file:
        for found in rows:
            file.write(to_json(found))


def make_run(
    folder: Path, name: str = "made", *, steps: int = 60, total: int = 80, state: str = "finished", **changes: Any
) -> RunPaths:
    """A run directory of so many steps with completions of the first and the last one; `changes` are metrics."""
    paths = RunPaths(folder / name)
    for part in ("completions", "control", "logs"):
        (paths.root / part).mkdir(parents=True)
    paths.lock.touch()
    settings = {
        "task": 'target_tokens = 64\ntolerance_tokens = 5\nname = "tldr"',
        "optimizer": "max_grad_norm = 1.0\nlearning_rate = 4e-4",
        "grpo": 'old_logprobs = "recomputed"',
        "stages.length.rewards": "length = 1.0\nmeteor = 1.0",
        "stages.quality.rewards": "length = 1.0\nmeteor = 1.0",
    }
    paths.config.write_text("".join(f"[{section}]\n{body}\n\n" for section, body in settings.items()))
    info = {"steps": {"length": total // 2, "quality": total - total // 2}, "headlines": HEADLINES}
    paths.info.write_text(json.dumps(info))
    for place, label in enumerate(("start", "length")):
        folder = paths.stage_evaluation(label)
        folder.mkdir(parents=True)
        means = {"completions/mean_length": 94.0 - 30 * place, "length/within_tol": 0.045 + place / 2, "meteor": None}
        summary = {"label": label, "step": 40 * place, "measures": MEASURES[:1], "metrics": means}
        (folder / "summary.json").write_text(json.dumps(summary))
    append(paths.metrics, [row(step, total, **changes) for step in range(1, steps + 1)])
    for step in {1, steps}:
        append(paths.completions(step), completions(step, total))
    began = {"time": stamp(0), "attempt": 1, "kind": "started", "message": "attempt 1 from step 0", "step": 0}
    end = {"time": stamp(30 + steps * STEP_S), "attempt": 1, "kind": state, "message": f"{state} at step {steps}"}
    append(paths.events, [began, *([end] if state in ("finished", "failed") else [])])
    status(paths.root, state, steps, total)
    return paths


def train_again(paths: RunPaths, step: int, steps: int, **changes: float) -> None:
    """A second attempt of the run, which goes back to a step and trains up to another one."""
    kept = [one for one in read_jsonl(paths.metrics) if one["step"] <= step]
    paths.metrics.unlink()
    append(paths.metrics, kept + [row(n, 80, **changes) for n in range(step + 1, steps + 1)])
    append(paths.events, [{"kind": "started", "message": "attempt 2", "attempt": 2, "step": step}])


def evaluate(paths: RunPaths, label: str, texts: dict[str, str], *, scored: bool = True) -> None:
    """An evaluation with these completions by example; each has the measures `meteor` and `tokens`."""
    folder = paths.stage_evaluation(label)
    folder.mkdir(parents=True, exist_ok=True)
    made = {"token_ids": [5, 6, 2], "finish_reason": "stop", "seed": 1, "worker": "local", "policy_version": 0}
    append(folder / "generations.jsonl", [{"id": name, "text": text, **made} for name, text in texts.items()])
    if scored:
        rows = [
            {"id": name, "text": text, "tokens": 2, "meteor": n / 8} for n, (name, text) in enumerate(texts.items())
        ]
        append(folder / "scores.jsonl", rows)


def measured(
    paths: RunPaths, label: str, prompts: str = "same", model: str = "a",
    measures: Sequence[Mapping[str, str]] = MEASURES, **metrics: float,
) -> RunPaths:  # fmt: skip
    """The run with another result of a stage, on the same texts."""
    folder = paths.stage_evaluation(label)
    folder.mkdir(parents=True, exist_ok=True)
    data = {"test": {"fingerprint": "texts", "prompts": prompts}}
    summary: dict[str, Any] = {"label": label, "measures": measures, "data": data, "model": {"path": model}}
    (folder / "summary.json").write_text(json.dumps(summary | {"metrics": metrics}))
    return paths


def screen(app: Any) -> str:
    """The text on an app's screen, without colours, a line for each row."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips) + "\n"


def golden(name: str, text: str) -> None:
    """The text is what the file holds; SMOLSUM_GOLDEN=1 in the environment writes it anew."""
    path = EXPECTED / name
    if os.environ.get("SMOLSUM_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
