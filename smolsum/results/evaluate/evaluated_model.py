"""What is evaluated: a run, one of its checkpoints, or a model, with its settings and the folder of its results."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smolsum.config.fields import RunName, check_value
from smolsum.config.resolve import resolve
from smolsum.config.sections import Config
from smolsum.errors import SmolsumError, UsageError
from smolsum.files import digest
from smolsum.policy.chat_template import template_of
from smolsum.policy.load import Policy, load_policy, weights_hash
from smolsum.policy.weights import load_trained
from smolsum.results.evaluate.sampling import GREEDY, ApiModel, DecodingSettings
from smolsum.runs.checkpoints import (
    Checkpoint,
    best_of,
    find_checkpoint,
    have_same_rewards,
    list_checkpoints,
    no_best,
    validation_of,
    whole,
)
from smolsum.runs.evaluation_records import BEHIND, Summary
from smolsum.runs.main_evaluation import RunOrigin, representatives
from smolsum.runs.paths import RunPaths, safe_name
from smolsum.runs.typed_json import has_scores, read_summary
from smolsum.runs.writer import at_commit, base_of
from smolsum.tasks import DEFAULT_TASK, TASKS
from smolsum.tasks.plugins import require_plugins


@dataclass(frozen=True)
class Target:
    """A policy to evaluate: its settings, the folder of its results, and its checkpoint if it is one of a run."""

    config: Config
    folder: Path
    label: str
    decoding: DecodingSettings = GREEDY
    checkpoint: Checkpoint | None = None
    api: ApiModel | None = None
    """the model that answers instead of the configured one, which then only counts tokens"""
    chosen: str = ""
    """why this checkpoint, in a sentence, if the user did not name it"""
    variant: str = ""
    """the prompt variant of a baseline"""
    base: str = ""
    """fingerprint of the weights that the checkpoint's adapters were trained on"""
    trained: str = ""
    """the name of a checkpoint that is evaluated as a model, outside of its run"""

    @property
    def step(self) -> int | None:
        """The step of the run whose evaluation this is; None outside of runs."""
        return self.checkpoint.step if self.checkpoint and not self.trained else None

    def load(self, *, shapes_only: bool = False) -> Policy:
        """Return the policy; with `shapes_only` its arrays have no values. Raises what `load_policy` and
        `load_trained` raise."""
        model, trained = self.config.model, self.checkpoint
        adapter = self.config.lora if model.adapter == "lora" else None
        whole = trained is not None and adapter is None
        policy = load_policy(
            str(trained.path) if trained is not None and whole else model.path,
            dtype=model.dtype,
            lora=None if trained is None else adapter,
            quantize=0 if whole else model.quantize,
            thinking=model.thinking,
            chat_template=model.chat_template if trained is None else template_of(trained.path, model.chat_template),
            shapes_only=shapes_only,
            convert=self.api is None,
        )
        if trained is not None and adapter is not None and not shapes_only:
            load_trained(policy, trained.path, base=self.base)
        return policy

    def identity(self, policy: Policy) -> dict[str, Any]:
        """Return the summary's `model`: its path, and the fingerprint of its weights or, in a run, the step; for an API
        its name and address."""
        if self.api is not None:
            endpoint = self.api.endpoint
            return {"path": endpoint.model, "dtype": "", "weights": f"{BEHIND}{endpoint.address}"}
        if self.checkpoint is not None and self.trained:
            weights = digest([self.base, self.checkpoint.meta.files])
            return {"path": self.trained, "dtype": policy.dtype, "weights": weights}
        if self.checkpoint is None:
            return {"path": self.config.model.path, "dtype": policy.dtype, "weights": weights_hash(policy.path)}
        return {"path": self.config.model.path, "dtype": policy.dtype, "weights": f"step {self.checkpoint.step}"}


@dataclass(frozen=True)
class TargetOptions:
    """How to evaluate a target, whatever it is."""

    split: str
    decoding: DecodingSettings
    runs_dir: Path
    task: str | None = None
    name: str | None = None
    """of the folder"""
    presets: Sequence[str] = ()
    config_file: Path | None = None
    sets: Sequence[str] = ()
    """KEY=VALUE"""
    fresh: bool = False
    """whether completions are made although another evaluation has them"""
    workers: str = ""
    """URLs, separated by commas, of the workers that sample"""
    suite: bool = False
    """whether the task is a benchmark, which trained models are measured on too"""
    files: str | None = None
    """the benchmark's"""


def find_target(reference: str, options: TargetOptions, *, best: bool = False) -> Target:
    """Return the target that `reference` names: a run (its last checkpoint, or the `best` by validation), the path of a
    checkpoint, or a model as for `smolsum train --model`. Raises UsageError for any other reference."""
    split, decoding, name = options.split, options.decoding, options.name
    named = find_checkpoint(reference, options.runs_dir)
    if best and named is None:
        raise no_best(reference)
    if named is None:
        config = _settings(options, _model(reference, options.runs_dir), options.config_file)
        own = f"eval-{_of(config)}{safe_name(reference)}-{split}{_suffix(decoding)}"
        folder = _folder(options.runs_dir, name or own)
        return Target(config, folder, folder.name, decoding)
    task = None if options.suite else options.task
    given = {"--task": task, "--config": options.config_file, "--preset": options.presets or None}
    if flag := next((name for name, value in given.items() if value is not None), None):
        raise UsageError(
            f"{reference} has its own settings, so it takes no {flag}", hint="change single ones with --set"
        )
    if trained := next((key for key in options.sets if key.strip().startswith(("model.", "lora."))), None):
        raise UsageError(
            f"{reference} was trained with its own model and adapter, so it takes no --set {trained}",
            hint="leave it out, or evaluate another model by its name or path",
        )
    run = named.run
    require_plugins(run)
    trained_as = replace(options, task=None, files=None, sets=()) if options.suite else options
    config = at_commit(_settings(trained_as, None, run.config), run)
    checkpoint, chosen = _best(run, config, reference) if best else (named.checkpoint, "")
    if options.suite:
        measured = replace(_settings(options, None, None), model=config.model, lora=config.lora)
        itself = f"{run.name}-step-{checkpoint.step:06d}"
        folder = _folder(options.runs_dir, name or f"eval-{options.task}-{itself}-{split}{_suffix(decoding)}")
        found = Target(measured, folder, folder.name, decoding, checkpoint, chosen=chosen)
        return replace(found, base=base_of(run), trained=itself)
    folder, label = _evaluation(run, checkpoint.step, split, decoding)
    folder = _folder(run.evaluations, name) if name else folder
    return Target(config, folder, name or label, decoding, checkpoint, chosen=chosen, base=base_of(run))


def baseline_targets(
    model: str | None, options: TargetOptions, *, variants: Sequence[str], apis: Sequence[ApiModel] = ()
) -> list[Target]:
    """Return an untrained model, or the `apis`, once for each prompt variant (default: the task's own). Raises
    UsageError for a variant that the task does not know, and for one name for several."""
    config = _settings(options, model, options.config_file)
    task = TASKS[config.task.name]
    chosen = list(dict.fromkeys(variants or task.prompts.baselines_for(config.task)))
    models: Sequence[ApiModel | None] = apis or (None,)
    if options.name and len(chosen) * len(models) > 1:
        raise UsageError(
            f"--name is for one prompt and one model, and there are {len(chosen) * len(models)}",
            hint="give one --prompt" if len(chosen) > 1 else "give one --api",
        )
    targets = []
    for api in models:
        label = safe_name(api.endpoint.model if api else model or config.model.path)
        for variant in chosen:
            own = f"baseline-{_of(config)}{label}-{_prompt(variant)}-{options.split}{_suffix(options.decoding)}"
            folder = _folder(options.runs_dir, options.name or own)
            varied = replace(config, task=task.prompts.variant(config.task, variant))
            targets.append(Target(varied, folder, folder.name, options.decoding, api=api, variant=variant))
    return targets


def _folder(parent: Path, name: str) -> Path:
    """Return the folder of this name. Raises UsageError for a bad name, and for the folder of a run."""
    check_value("--name", RunName, name, "flag")
    if RunPaths(parent / name).config.exists():
        raise UsageError(f"{parent / name} is a run, and not a folder for results", hint="--name with another name")
    return parent / name


def _prompt(variant: str) -> str:
    """Return a prompt variant in a folder's name: itself, or the beginning of a text and a fingerprint."""
    name = safe_name(variant)
    return name if name == variant else f"{name[:40].rstrip('._-')}-{digest(variant)[:8]}"


def _of(config: Config) -> str:
    """Return the task in a folder's name, unless it is the default one."""
    return "" if config.task.name == DEFAULT_TASK else f"{config.task.name}-"


def _best(run: RunPaths, config: Config, reference: str) -> tuple[Checkpoint, str]:
    """Return the run's best checkpoint by validation, and a sentence. Raises UsageError without one, or if damaged."""
    best = best_of(list_checkpoints(run), config.stages)
    if best is None:
        raise no_best(reference)
    found, stage = validation_of(best), best.meta.stage
    score = TASKS[config.task.name].evaluation.score
    scores = ", ".join(
        f"{name} {found[key]:.3f}" for key, name in (("score", score), ("reward", "reward")) if key in found
    )
    apart = "score" not in found and not have_same_rewards(config.stages)
    of = f", of those of stage {stage}: its reward is not that of the stages before" if apart else ""
    return whole([best], best.path), f"step {best.step} of {run.name} did best on the validation split ({scores}){of}"


def _model(reference: str, runs_dir: Path) -> str:
    """Return the reference as a model. Raises UsageError for a path that does not exist."""
    path = Path(os.path.expanduser(reference))
    inside = path.parent not in (Path(), Path("/")) and path.parent.is_dir()
    if not path.exists() and (inside or path.is_absolute() or path.parts[:1] == (runs_dir.name,)):
        raise UsageError(f"{reference} is not a run, a checkpoint or a model", hint=f"look into {path.parent}")
    return reference


def settings_of(options: TargetOptions) -> Config:
    """Return the settings of an evaluation that has no model, with a name for its folder that can be one. Raises
    UsageError for wrong ones."""
    if options.name:
        _folder(options.runs_dir, options.name)
    return _settings(options, None, options.config_file)


def _settings(options: TargetOptions, model: str | None, config_file: Path | None) -> Config:
    """Return the settings, with the workers of this evaluation: those that trained a run may be gone."""
    flags: dict[str, Any] = {"run.dir": str(options.runs_dir), "workers.urls": options.workers}
    flags |= {"task.name": options.task, "data.path": options.files, "train.fresh_evaluations": options.fresh or None}
    try:
        return resolve(
            TASKS, model=model, presets=options.presets, config_file=config_file, sets=options.sets, flags=flags
        ).config
    except UsageError as error:
        if model is not None and error.message.startswith("flag --model"):
            raise UsageError(f"no run, checkpoint or model {model!r}", hint=error.hint) from error
        raise


def _evaluation(run: RunPaths, step: int, split: str, decoding: DecodingSettings) -> tuple[Path, str]:
    """Return the folder and label of the run's own evaluation of the step, or new ones."""
    if decoding == GREEDY:
        origin, found = RunOrigin.read(run), dict[Path, Summary]()
        for folder in filter(has_scores, sorted(run.evaluations.glob(f"*-{split}"))):
            with suppress(SmolsumError):  # a damaged one is made again
                summary = read_summary(folder)
                if (summary.step, summary.sampler) == (step, GREEDY.name) and not origin.is_other_data(folder, summary):
                    found[folder] = summary
        if found:
            chosen = representatives(found, origin)[0]
            return chosen, str(found[chosen].label)
    label = f"step-{step:06d}"
    return run.evaluation(f"{label}-{split}{_suffix(decoding)}"), label


def _suffix(decoding: DecodingSettings) -> str:
    several = f"-x{decoding.samples}" if decoding.samples > 1 else ""
    return f"-t{decoding.temperature:g}-seed{decoding.seed}{several}" if decoding.temperature else ""
