"""The completions of one evaluation on disk, saved batch by batch before anything is measured or judged.

origin.json         what they were made from and are measured by: what a later evaluation must find as it was
generations.jsonl   one line an example: text, token ids, why it ended, its seed

The scores of one evaluation on disk: a line for each example, and a summary that says what was measured.

scores.jsonl, one object an example, in the order of the data:
  id, split, data      which example; `data` is the fingerprint of the split's content
  text                 the completion
  <metric>             every metric of the task, a number, null where it has no value (tldr: tokens, within_tol, …)
  judge                with a judge: its name, rounds and prompts; scores of another are not compared
  <criterion>          with a judge: the mean over its rounds, in [0, 1], null where all are missing
  composite            their sum; null where one is missing
  pass_rate, passed    share of rounds in which all criteria reach their thresholds; whether that is most of them (0, 1)
  rounds               with a judge: {criterion, composite, passed: [a value or null for each round]}

summary.json:
  schema_version, n    of this layout; examples
  label, step          what was evaluated; `step` in a run only, as `weights`: fingerprint of model and training
  split, sampler, model, tokenizer, data, meteor, task, max_new_tokens     provenance; what is not known is left out
  metrics              {name: mean over the examples that have a value, or null}; judged ones also as `<name>/se`; with
                       several samples, of which the lines have the first, over all where the task has metrics of them;
                       `errors/<kind>`: share of the examples that have that error
  score, criteria, headlines, panels, watched, errors    how the task shows them (`legend.py`)
  judge                as in the lines
  judging              model, endpoint (URL), rounds, prompts (fingerprints), thresholds,
                       usage (calls, tokens, dollars, cached),
                       missing ([{id, round, metric, error, attempts}]), noise ({metric: n, round_sd, icc, icc_mean}),
                       second (the same of a second judge, with `agreement`: {metric: n, pearson, spearman, …})
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from smolsum.config.sections import Config
from smolsum.errors import SmolsumError, UsageError
from smolsum.evaluate.sampling import Sampler
from smolsum.files import Lines, read_jsonl, replace, to_json
from smolsum.runs.records import SCHEMA_VERSION, SCORES, SUMMARY, has_scores
from smolsum.types import Prompt, Rollout, RolloutGroup


def write_scores(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, float | None],
    origin: Mapping[str, Any],
    remedy: str,
) -> None:
    """Write `scores.jsonl`, then `summary.json` with the split's metrics and the fingerprints in `origin`.

    `remedy` is the command that goes on after a full disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / SCORES, b"".join(to_json(row) for row in rows), remedy)
    summary = {"schema_version": SCHEMA_VERSION, "n": len(rows), **origin, "metrics": metrics}
    replace(folder / SUMMARY, to_json(summary, indent=2), remedy)


GENERATIONS = "generations.jsonl"
ORIGIN = "origin.json"
TASK = "task"
"""of an origin: what the task's measures depend on"""

KINDS = {
    "id": str, "text": str, "token_ids": list, "finish_reason": str, "seed": int, "worker": str, "policy_version": int,
}  # fmt: skip
"""what a line of `generations.jsonl` holds"""
ENDS = ("stop", "length")

Completer = Callable[[Sequence[Prompt]], Iterator[Sequence[RolloutGroup]]]


def generated_from(
    weights: str,
    tokenizer: str,
    split: Mapping[str, str],
    config: Config,
    sampler: Sampler,
    measures: Mapping[str, Any],
) -> dict[str, Any]:
    """What decides the completions of an evaluation and, as `task`, what its `measures` depend on. `weights` are a
    fingerprint or, inside a run, the step; `split` is as of `materials.split_fingerprints`."""
    return {
        "model": config.model.path,
        "weights": weights,
        "dtype": config.model.dtype,
        "quantize": config.model.quantize,
        "tokenizer": tokenizer,
        **split,
        "sampler": sampler.name,
        "max_new_tokens": config.sampling.max_new_tokens,
        TASK: measures,
    }


def same_completions(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two origins make the same completions, however they are measured."""
    return {**one, TASK: None} == {**other, TASK: None}


def obtain(
    folder: Path,
    prompts: Sequence[Prompt],
    origin: Mapping[str, Any],
    completer: Completer,
    remedy: str,
    report: Callable[[int], None] = lambda done: None,
    samples: int = 1,
) -> list[RolloutGroup]:
    """Returns `samples` completions for each prompt, in their order: those that the folder has, the others from
    `completer`, which is only called if one is missing, and saved as they come.

    `report` hears how many are there. UsageError where the folder's are of another `origin`.
    """
    check_origin(folder, origin, remedy)
    found = _read(folder, prompts, samples)
    missing = [prompt for prompt in prompts if prompt.id not in found]
    report(len(found))
    if missing:
        with Lines(folder / GENERATIONS, remedy) as lines:
            for batch in completer(missing):
                for group in batch:
                    for n, rollout in enumerate(group.rollouts):
                        lines.append(to_json(_row(group.prompt, n, rollout)))
                    found[group.prompt.id] = group
                report(len(found))
    return [found[prompt.id] for prompt in prompts]


def check_origin(folder: Path, origin: Mapping[str, Any], remedy: str) -> None:
    """Write down what the folder's completions are made from; UsageError, with the differences, if that is known
    already and is something else. What nothing was measured by yet may change."""
    path, now = folder / ORIGIN, json.loads(to_json(origin))
    if not path.exists():
        replace(path, to_json(now, indent=2), remedy)
        return
    try:
        then = json.loads(path.read_bytes())
    except ValueError as error:
        raise SmolsumError(f"{path} is damaged: {error}", hint=f"remove {folder} and evaluate again") from error
    if then != now and same_completions(then, now) and not has_scores(folder):
        replace(path, to_json(now, indent=2), remedy)
    elif then != now:
        one, two = _flat(then), _flat(now)
        keys = [key for key in {**one, **two} if one.get(key) != two.get(key)]
        differences = "; ".join(f"{key} {one.get(key)} then, {two.get(key)} now" for key in keys)
        raise UsageError(
            f"{folder} holds the evaluation of something else: {differences}",
            hint="--name OTHER keeps both",
        )


def _flat(origin: Any) -> dict[str, Any]:
    """An origin with a name for each setting: `task.target_tokens`."""
    flat = dict[str, Any]()
    for key, value in (origin if isinstance(origin, dict) else {"": origin}).items():
        flat |= {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def _row(prompt: Prompt, sample: int, rollout: Rollout) -> dict[str, Any]:
    return {
        "id": prompt.id,
        **({"sample": sample} if sample else {}),
        "text": rollout.text,
        "token_ids": list(rollout.token_ids),
        "finish_reason": rollout.finish_reason,
        "seed": rollout.seed,
        "worker": rollout.worker,
        "policy_version": rollout.policy_version,
    }


def _read(folder: Path, prompts: Sequence[Prompt], samples: int) -> dict[str, RolloutGroup]:
    """The saved completions by id, of prompts that have all of theirs; their log-probs were not kept."""
    saved: dict[str, dict[int, Rollout]] = {}
    for number, row in enumerate(read_jsonl(folder / GENERATIONS), start=1):
        if not _is_saved(row):
            where = f"{folder / GENERATIONS}:{number}"
            raise SmolsumError(
                f"{where} is not a saved completion, so the file is damaged",
                hint="remove that line; only its example is completed again",
            )
        rollout = Rollout(
            tuple(row["token_ids"]), (), row["finish_reason"], row["policy_version"], row["worker"], row["seed"],
            row["text"],
        )  # fmt: skip
        saved.setdefault(row["id"], {})[row.get("sample", 0)] = rollout
    whole = [prompt for prompt in prompts if len(saved.get(prompt.id, ())) == samples]
    return {p.id: RolloutGroup(p, tuple(saved[p.id][n] for n in range(samples))) for p in whole}


def _is_saved(row: Mapping[str, Any]) -> bool:
    typed = all(isinstance(row.get(key), kind) for key, kind in KINDS.items())
    typed = typed and isinstance(row.get("sample", 0), int)
    return typed and row["finish_reason"] in ENDS and all(isinstance(i, int) and i >= 0 for i in row["token_ids"])
