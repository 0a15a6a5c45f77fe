"""What a run's stages did to the model: its greedy scores on the test split before the first and after each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from smolsum.config import Config
from smolsum.disk import replace, to_json
from smolsum.errors import SmolsumError
from smolsum.evaluate.generate import GREEDY, complete, measured
from smolsum.evaluate.generations import GENERATIONS, ORIGIN, generated_from, obtain, same_completions
from smolsum.evaluate.legend import error_shares, legend
from smolsum.evaluate.scores import has_scores, read_summary, write_scores
from smolsum.fingerprint import digest
from smolsum.manifest import FIXED
from smolsum.materials import Materials
from smolsum.runs import RunPaths, list_runs

SPLIT = "test"
WEIGHTS = "weights"
"""of the summary: what the evaluated weights were trained from and how"""


def score_stage(materials: Materials, config: Config, paths: RunPaths, *, label: str, step: int, trained: str) -> None:
    """Evaluate the policy as it stands into `eval/<label>-test`, as `smolsum eval` does without a judge.

    `trained` is the fingerprint of the stages that lie behind the policy: where another run beside this one has
    completions of the same weights, they are taken from there.
    """
    folder, remedy = paths.evaluation(f"{label}-{SPLIT}"), paths.resume_command
    split = materials.provenance["data"][SPLIT]
    measures = materials.task.measures(config)
    made_from = generated_from(f"step {step}", materials.provenance["tokenizer"], split, config, GREEDY, measures)
    weights = digest([materials.provenance["model"], trained])
    _share(folder, made_from, weights, paths.root.parent, remedy)
    groups = obtain(
        folder,
        materials.prompts[SPLIT],
        made_from,
        lambda missing: complete(materials.policy, missing, config, version=step),
        remedy,
    )
    materials.task.ask_ahead([(g.prompt, g.rollouts[0]) for g in groups], config)
    rows = measured(groups, SPLIT, split["fingerprint"], materials.measure)
    origin = {"label": label, "step": step, "split": SPLIT, "sampler": GREEDY.name, WEIGHTS: weights}
    origin |= {key: materials.provenance[key] for key in FIXED}
    origin |= {"task": measures, "max_new_tokens": config.sampling.max_new_tokens}
    metrics = materials.task.summarise(rows) | error_shares(materials.task.errors, rows)
    write_scores(folder, rows, metrics, origin | legend(materials.task, metrics), remedy)


def _share(folder: Path, made_from: Mapping[str, Any], weights: str, runs_dir: Path, remedy: str) -> None:
    """Give the folder another run's completions of the same weights, if it has none of its own."""
    if (folder / GENERATIONS).exists():
        return
    for run in reversed(list_runs(runs_dir)):
        other = run.evaluation(folder.name)
        with suppress(OSError, ValueError, TypeError, SmolsumError):  # not a whole evaluation: it will be made anew
            same = has_scores(other) and read_summary(other).get(WEIGHTS) == weights
            if same and same_completions(json.loads((other / ORIGIN).read_bytes()), json.loads(to_json(made_from))):
                replace(folder / GENERATIONS, (other / GENERATIONS).read_bytes(), remedy)
                return
