"""What a run's stages did to the model: its greedy scores on the test split before the first and after each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from smolsum.config.sections import Config
from smolsum.errors import SmolsumError
from smolsum.evaluate.sampling import GREEDY, complete, measured
from smolsum.evaluate.storage import GENERATIONS, ORIGIN, generated_from, obtain, same_completions, write_scores
from smolsum.evaluate.tables import error_shares, legend
from smolsum.files import digest, replace, to_json
from smolsum.policy.load import Policy
from smolsum.runs.manifest import FIXED
from smolsum.runs.paths import RunPaths, list_runs
from smolsum.runs.records import has_scores, read_summary
from smolsum.tasks.base import Task
from smolsum.types import Prompt, Rollout

SPLIT = "test"
WEIGHTS = "weights"
"""of the summary: what the evaluated weights were trained from and how"""


def score_stage(
    policy: Policy,
    task: Task,
    prompts: Sequence[Prompt],
    measure: Callable[[Prompt, Rollout], dict[str, Any]],
    provenance: Mapping[str, Any],
    config: Config,
    paths: RunPaths,
    *,
    label: str,
    step: int,
    trained: str,
) -> None:
    """Evaluate the policy as it stands into `eval/<label>-test`, as `smolsum eval` does without a judge.

    `trained` is the fingerprint of the stages that lie behind the policy: where another run beside this one has
    completions of the same weights, they are taken from there.
    """
    folder, remedy = paths.evaluation(f"{label}-{SPLIT}"), paths.resume_command
    split = provenance["data"][SPLIT]
    measures = task.measures(config)
    made_from = generated_from(f"step {step}", provenance["tokenizer"], split, config, GREEDY, measures)
    weights = digest([provenance["model"], trained])
    _share(folder, made_from, weights, paths.root.parent, remedy)
    groups = obtain(
        folder,
        prompts,
        made_from,
        lambda missing: complete(policy, missing, config, version=step),
        remedy,
    )
    task.ask_ahead([(g.prompt, g.rollouts[0]) for g in groups], config)
    rows = measured(groups, SPLIT, split["fingerprint"], measure)
    origin = {"label": label, "step": step, "split": SPLIT, "sampler": GREEDY.name, WEIGHTS: weights}
    origin |= {key: provenance[key] for key in FIXED}
    origin |= {"task": measures, "max_new_tokens": config.sampling.max_new_tokens}
    metrics = task.summarise(rows) | error_shares(task.errors, rows)
    write_scores(folder, rows, metrics, origin | legend(task, metrics), remedy)


def _share(folder: Path, made_from: Mapping[str, Any], weights: str, runs_dir: Path, remedy: str) -> None:
    """Give the folder another run's completions of the same weights, if it has none of its own."""
    if (folder / GENERATIONS).exists():
        return
    for run in reversed(list_runs(runs_dir)):
        other = run.evaluation(folder.name)
        with suppress(OSError, ValueError, TypeError, SmolsumError):  # not a whole evaluation: it will be made anew
            same = has_scores(other) and read_summary(other).weights == weights
            if same and same_completions(json.loads((other / ORIGIN).read_bytes()), json.loads(to_json(made_from))):
                replace(folder / GENERATIONS, (other / GENERATIONS).read_bytes(), remedy)
                return
