"""What a run's stages did to the model: its greedy scores on the test split before the first and after each."""

from __future__ import annotations

from pathlib import Path

from smolsum.config import Config
from smolsum.evaluate.generate import GREEDY, complete, measured
from smolsum.evaluate.generations import generated_from, obtain
from smolsum.evaluate.legend import error_shares, legend
from smolsum.evaluate.scores import write_scores
from smolsum.manifest import FIXED
from smolsum.materials import Materials

SPLIT = "test"


def score_stage(materials: Materials, config: Config, folder: Path, *, label: str, step: int, remedy: str) -> None:
    """Evaluate the policy as it stands into `folder`, as `smolsum eval` does without a judge; `remedy` is the command
    that goes on after a full disk."""
    split = materials.provenance["data"][SPLIT]
    groups = obtain(
        folder,
        materials.prompts[SPLIT],
        generated_from(f"step {step}", materials.provenance["tokenizer"], split, config, GREEDY),
        lambda missing: complete(materials.policy, missing, config, version=step),
        remedy,
    )
    rows = measured(groups, SPLIT, split["fingerprint"], materials.measure)
    origin = {"label": label, "step": step, "split": SPLIT, "sampler": GREEDY.name}
    origin |= {key: materials.provenance[key] for key in FIXED}
    metrics = materials.task.summarise(rows) | error_shares(materials.task.errors, rows)
    write_scores(folder, rows, metrics, origin | legend(materials.task, metrics), remedy)
