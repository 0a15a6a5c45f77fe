"""The files of one evaluation, except its judgements (`judgements.py`).

origin.json         what decides completions and measures; a later evaluation in this folder must agree, and one in
                    another folder with the same `completions` takes them over, so that a model is sampled once: for
                    `smolsum baseline`, `smolsum eval`, or the start of any number of trainings
generations.jsonl   one completion a line, saved before anything is measured: text, token ids, finish reason, seed

scores.jsonl, one example a line, in the order of the data:
  id, split, data      `data` is the fingerprint of the split's content
  text                 the completion
  <metric>             every metric of the task, a number, null without a value (tldr: tokens, within_tol, …)
  judge                with a judge: its name, rounds and prompts; scores of another are not compared
  <criterion>          with a judge: the mean over its rounds, in [0, 1], null if all are missing
  composite            their sum; null if one is missing
  pass_rate, passed    share of rounds in which all criteria reach their thresholds; whether that is most of them (0, 1)
  rounds               with a judge: {criterion, composite, passed: [a value or null for each round]}

summary.json:
  schema_version, n    of this layout; examples
  whole                examples of the split, while only a sample of n is evaluated: the start of a run under way
  label, step          what was evaluated; `step` in a run only, as `weights`: fingerprint of model and training
  split, sampler, model, tokenizer, data, meteor, task, max_new_tokens     provenance; unknown keys are left out
  metrics              {name: mean over the examples that have a value, or null}; judged ones also as `<name>/se`; with
                       several samples, of which the lines have the first, over all if the task has metrics of them;
                       `errors/<kind>`: share of the examples that have that error
  score, criteria, headlines, measures, panels, watched, errors    how the task shows them (`tables.describe_task`)
  judge                as in the lines
  judging              model, endpoint (URL), rounds, prompts (fingerprints), thresholds,
                       usage (calls, tokens, dollars, cached),
                       missing ([{id, round, metric, error, attempts}]), noise ({metric: n, round_sd, icc, icc_mean}),
                       second (the same of a second judge, with `agreement`: {metric: n, pearson, spearman, …} and
                       `kappa` of what passes), others (judges from the third on), alpha (Krippendorff's, by metric),
                       until, most_rounds, weighted (how rounds and scores were made),
                       corrected (of what passes: [{source, raw, n, sensitivity, good, specificity, bad, share, low,
                       high}])
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from smolsum.errors import SmolsumError, UsageError
from smolsum.files import Lines, json_objects, read_bytes, replace, to_json, whole_lines
from smolsum.rollout.sampling_count import SamplingCounter
from smolsum.runs.digests import EVALUATED, record_files
from smolsum.runs.evaluation_records import GENERATIONS, SCORES, SUMMARY, Generation, Score, Summary
from smolsum.runs.paths import LATEST, RunPaths
from smolsum.runs.records import SCHEMA_VERSION
from smolsum.runs.typed_json import encode, has_scores, read_lines, read_object, to_row
from smolsum.types import Prompt, Rollout, RolloutGroup, SamplingProgress

ORIGIN = "origin.json"
TASK = "task"
"""of origin and summary: the settings that the task's measures depend on"""
WEIGHTS = "weights"
"""of the summary of a stage: fingerprint of the model and of the stages that trained it"""
KEY = "completions"
"""of the origin: fingerprint of all that decides the completions, the same in all folders; empty where none is known"""
Completer = Callable[[Sequence[Prompt], Callable[[SamplingProgress], None]], Iterator[Sequence[RolloutGroup]]]
"""prompts to groups of completions, a batch at a time; the function is called within a batch"""


def write_scores(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, float | None],
    origin: Mapping[str, Any],
    retry: str,
) -> None:
    """Write `scores.jsonl`, then `summary.json`: `origin`, which describes what was evaluated, and the metrics.

    `retry` is the command that continues after a full disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / SCORES, b"".join(encode(Score, dict(row)) for row in rows), retry)
    # last, as it marks a finished evaluation (`has_scores`)
    summary = {"schema_version": SCHEMA_VERSION, "n": len(rows), **origin, "metrics": metrics}
    replace(folder / SUMMARY, encode(Summary, summary, indent=2), retry)
    if (run := RunPaths(folder.parent.parent)).info.is_file() and folder.parent == run.evaluations:
        record_files(run, *(folder / name for name in EVALUATED))


def obtain(
    folder: Path,
    prompts: Sequence[Prompt],
    origin: Mapping[str, Any],
    completer: Completer,
    retry: str,
    *,
    counter: SamplingCounter,
    samples: int,
    runs_dir: Path | None,
    note: Callable[[str], None],
) -> list[RolloutGroup]:
    """Return `samples` completions for each prompt, in the prompts' order: from the folder, else from another
    evaluation in `runs_dir` (None: from no other), about which `note` gets a sentence, else from `completer`, which is
    only called if one is missing; new ones are saved as they come, and all are counted.

    Raises UsageError if the folder's are of another `origin`.
    """
    check_origin(folder, origin, retry)
    found = {g.prompt.id: g for g in whole_groups(read_generations(folder), prompts, samples)}
    if len(found) == len(prompts):
        counter.begin(len(found) * samples)
        return [found[prompt.id] for prompt in prompts]
    _set_key(folder, origin[KEY], retry)
    with Lines(folder / GENERATIONS, retry) as lines:

        def save(groups: Sequence[RolloutGroup]) -> None:
            for group in groups:
                for n, rollout in enumerate(group.rollouts):
                    lines.append(to_json(to_row(_generation(group.prompt, n, rollout))))
                found[group.prompt.id] = group

        missing = [prompt for prompt in prompts if prompt.id not in found]
        kept, folders = find_kept(missing, samples, key=origin[KEY], runs_dir=runs_dir, but=folder)
        if kept:
            note(
                f"the completions of {len(kept)} of {len(prompts)} prompts are taken from "
                f"{', '.join(map(str, folders))}, which evaluated the same model in the same way"
            )
        save(kept)
        counter.begin(len(found) * samples)
        if missing := [prompt for prompt in prompts if prompt.id not in found]:
            for batch in completer(missing, counter.within):
                save(batch)
                counter.add(batch)
    return [found[prompt.id] for prompt in prompts]


def check_origin(folder: Path, origin: Mapping[str, Any], retry: str) -> None:
    """Save what the folder's completions are made from; UsageError, with the differences, if the folder has another
    origin. The settings of measures may change until there are scores."""
    path, now = folder / ORIGIN, json.loads(to_json(origin))
    if not path.exists():
        replace(path, to_json(now, indent=2), retry)
        return
    try:
        then = {KEY: "", **json.loads(path.read_bytes())}
    except (ValueError, TypeError) as error:
        raise SmolsumError(f"{path} is damaged: {error}", hint=f"remove {folder} and evaluate again") from error
    now[KEY] = then[KEY]  # need not agree: `_set_key` sees to it
    if then == now:
        return
    if {**then, TASK: now.get(TASK)} == now and not has_scores(folder):  # measured in other ways
        replace(path, to_json(now, indent=2), retry)
    else:
        one, two = _flat(then), _flat(now)
        keys = [key for key in {**one, **two} if one.get(key) != two.get(key)]
        same_data = "fingerprint" not in keys
        words = {
            "fingerprint": "other data",
            "prompts": "other prompts" if same_data else "",
            "tokenizer": "another tokenizer",
        }
        said = [words.get(key, f"{key} {one.get(key)} then, {two.get(key)} now") for key in keys]
        differences = "; ".join(text for text in said if text)
        raise UsageError(
            f"{folder} holds the evaluation of something else: {differences}", hint="--name OTHER keeps both"
        )


def _set_key(folder: Path, key: str, retry: str) -> None:
    """Note what decides the completions that are to come. A folder that has some which something else decided, such as
    another version of smolsum, is of no use to other evaluations, and loses its key."""
    path = folder / ORIGIN
    origin = read_object(path)
    if origin.get(KEY) != key:
        begun = (folder / GENERATIONS).exists()
        replace(path, to_json({**origin, KEY: "" if begun else key}, indent=2), retry)


def _flat(origin: Any) -> dict[str, Any]:
    """Return an origin with dotted keys: `task.target_tokens`."""
    flat = dict[str, Any]()
    for key, value in (origin if isinstance(origin, dict) else {"": origin}).items():
        flat |= {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def _generation(prompt: Prompt, sample: int, rollout: Rollout) -> Generation:
    return Generation(
        id=prompt.id,
        sample=sample,
        text=rollout.text,
        token_ids=list(rollout.token_ids),
        finish_reason=rollout.finish_reason,
        seed=rollout.seed,
        worker=rollout.worker,
        policy_version=rollout.policy_version,
    )


def read_generations(folder: Path) -> list[Generation]:
    """Return the saved completions of a folder; none if it has none. Raises SmolsumError for a damaged line."""
    hint = "remove that line; only its example is completed again"
    return read_lines(folder / GENERATIONS, Generation, hint=hint)


def whole_groups(rows: Iterable[Generation], prompts: Sequence[Prompt], samples: int) -> list[RolloutGroup]:
    """Return the saved completions, without log-probs, of the prompts that have all of theirs."""
    saved: dict[str, dict[int, Rollout]] = {}
    for row in rows:
        rollout = Rollout(
            tuple(row.token_ids), (), row.finish_reason, row.policy_version, row.worker, row.seed, row.text
        )
        saved.setdefault(row.id, {})[row.sample] = rollout
    whole = [prompt for prompt in prompts if saved.get(prompt.id, {}).keys() == set(range(samples))]
    return [RolloutGroup(p, tuple(saved[p.id][n] for n in range(samples))) for p in whole]


def find_kept(
    prompts: Sequence[Prompt], samples: int, *, key: str, runs_dir: Path | None, but: Path
) -> tuple[list[RolloutGroup], list[Path]]:
    """Return the completions of the prompts that evaluations with this key have, in whole groups, and the folders of
    these evaluations, except `but`. They are only read; what is damaged or half written counts as missing."""
    found: dict[str, RolloutGroup] = {}
    folders = []
    for folder in _evaluations(runs_dir, key) if key and runs_dir else ():
        missing = [prompt for prompt in prompts if prompt.id not in found]
        if missing and folder.resolve() != but.resolve():
            groups = whole_groups(_readable(folder), missing, samples)
            found |= {group.prompt.id: group for group in groups}
            folders += [folder] if groups else []
    return [found[prompt.id] for prompt in prompts if prompt.id in found], folders


def _evaluations(runs_dir: Path, key: str) -> Iterator[Path]:
    """Yield the folders of evaluations with this key, inside of runs and next to them."""
    for pattern in (f"*/{ORIGIN}", f"*/eval/*/{ORIGIN}"):
        for path in sorted(runs_dir.glob(pattern)):
            if path.relative_to(runs_dir).parts[0] != LATEST:
                with suppress(SmolsumError):
                    if read_object(path).get(KEY) == key:
                        yield path.parent


def _readable(folder: Path) -> Iterator[Generation]:
    """Yield the completions that can be read."""
    content = b""
    with suppress(SmolsumError):
        content = read_bytes(folder / GENERATIONS)
    for row in json_objects(whole_lines(content)):
        with suppress(msgspec.ValidationError, RecursionError):
            yield msgspec.convert(row, Generation)
