"""The completions of one evaluation on disk, saved batch by batch before anything is measured or judged.

origin.json         what they were made from and are measured by: what a later evaluation must find as it was
generations.jsonl   one line an example: text, token ids, why it ended, its seed
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from smolsum.config import Config
from smolsum.disk import replace, to_json
from smolsum.errors import SmolsumError, UsageError
from smolsum.evaluate.generate import Sampler
from smolsum.evaluate.scores import has_scores
from smolsum.lines import Lines, read_jsonl
from smolsum.rollout.records import Prompt, Rollout, RolloutGroup

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
