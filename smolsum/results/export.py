"""A trained model as a folder for others: its files, its card, and the evidence for the numbers on the card."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace as with_fields
from pathlib import Path

from smolsum import console
from smolsum.config.hub import hub_name
from smolsum.config.sections import LoraConfig, ModelConfig
from smolsum.errors import SmolsumError, UsageError
from smolsum.files import locked, replace, writing
from smolsum.policy.chat_template import FILE
from smolsum.policy.export import export_adapters, export_gguf, export_policy, load_checkpoint
from smolsum.policy.load import DTYPES, Policy
from smolsum.results.report.card import CardFacts, card_files
from smolsum.runs.checkpoints import (
    Checkpoint,
    best_of,
    find_checkpoint,
    full_disk_is_os_error,
    list_checkpoints,
    no_best,
    whole,
)
from smolsum.runs.evidence import write_evidence
from smolsum.runs.main_evaluation import SAMPLER, SPLIT, split_of
from smolsum.runs.paths import RunPaths, open_run, safe_name
from smolsum.runs.records import RunInfo, RunSettings
from smolsum.runs.typed_json import has_scores, read, read_object, read_summary

RETRY = "smolsum export again"


def find_exported(reference: str, runs_dir: Path, *, best: bool) -> tuple[RunPaths, Checkpoint]:
    """Return the run and the checkpoint that `reference` names: a run's last one or with `best` its best one, or the
    directory of a checkpoint. Raises UsageError where it names nothing."""
    named = find_checkpoint(reference, runs_dir)
    if named is None:
        open_run(reference, runs_dir)  # says what is wrong
        raise UsageError(f"{reference} is not a run", hint="smolsum runs lists them")
    if not best:
        return named.run, named.checkpoint
    chosen = best_of(list_checkpoints(named.run), read(named.run.config, RunSettings).stages)
    if chosen is None:
        raise no_best(reference)
    return named.run, whole([chosen], chosen.path)


def write_export(
    run: RunPaths, checkpoint: Checkpoint, folder: Path, *, title: str, adapter: bool, gguf_type: str, license: str
) -> None:
    """Write a checkpoint of a run into a new or empty folder, or nothing: the whole model in the Hugging Face layout or
    as a GGUF file of weights of `gguf_type`, or with `adapter` the adapters alone, with a model card and its evidence.
    Raises UsageError for a run that was not evaluated there or a folder that does not serve."""
    if gguf_type and adapter:
        raise UsageError("a GGUF file has the whole model, not the adapters", hint="leave --adapter out")
    with _building(folder) as building:
        evidence = write_evidence(run, checkpoint.step, building / "evidence", RETRY, console.warn)
        summaries = {one: read_summary(one) for one in evidence.evaluations.glob("*") if has_scores(one)}
        mains = [one for folder, one in summaries.items() if split_of(folder, one) == SPLIT and one.sampler == SAMPLER]
        if not any(one.step == checkpoint.step for one in mains):
            raise UsageError(
                f"step {checkpoint.step} of {run.name} was not evaluated on the test split, so its card would have no "
                "results",
                hint=f"smolsum eval {checkpoint.path}",
            )
        policy = load_exported(run, checkpoint)
        with writing(folder, RETRY), full_disk_is_os_error(building):
            file, dtype = "", str(policy.dtype)
            if gguf_type:
                dtype, most = gguf_type, int(read_object(run.config)["sampling"]["max_new_tokens"])
                file, count = export_gguf(policy, building, kind=dtype, name=safe_name(title), most=most)
            else:
                count = (export_adapters if adapter else export_policy)(policy, building)
        facts = CardFacts(
            title, checkpoint.step, count, dtype, policy.system, license, adapter=adapter, file=file,
            own_template=adapter and (building / FILE).is_file(),
        )  # fmt: skip
        for name, text in card_files(evidence, facts, building).items():
            replace(building / name, text.encode("utf-8", "backslashreplace"), RETRY)
    if not license:
        console.warn("the card names no licence: --license NAME; that of the base model binds too")


def load_exported(run: RunPaths, checkpoint: Checkpoint) -> Policy:
    """Return the policy of a checkpoint, in the type that it was trained in."""
    settings, info = read_object(run.config), read(run.info, RunInfo)
    try:
        model, lora = ModelConfig(**settings["model"]), LoraConfig(**settings.get("lora", {}))
    except (KeyError, TypeError) as error:
        raise SmolsumError(f"{run.config} is damaged: {error}", hint="restore it from a copy") from error
    commit, name = info.revisions.get(model.path), hub_name(model.path)
    path = str(with_fields(name, revision=commit)) if name and commit else model.path
    dtype = next((one for one in DTYPES if one == info.model.dtype), model.dtype)
    adapter = lora if model.adapter == "lora" else None
    return load_checkpoint(
        checkpoint.path, with_fields(model, path=path, dtype=dtype), adapter, base=info.model.weights
    )


@contextmanager
def _building(folder: Path) -> Iterator[Path]:
    """Give a folder that becomes `folder` once the block ends without an error. Raises UsageError for one that has
    files already or cannot be made, for the current one, and where another process exports to it."""
    try:
        target = folder.expanduser().resolve()  # a link stays, and what it leads to is replaced
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"{folder} exists and is not an empty directory", hint="choose another, or remove it")
        if target == Path.cwd() or target.is_mount():  # neither can be replaced
            raise UsageError(f"{folder} is in use, as a mount or by this shell", hint="name a new directory in it")
        building = target.with_name(f".{target.name}.tmp")
        building.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        what = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot write {folder}: {what}", hint="choose another directory") from error
    lock = building / ".lock"
    with locked(lock, f"{folder} is being exported to", RETRY):
        try:
            for path in set(building.iterdir()) - {lock}:  # what a killed export left
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            yield building
            with writing(folder, RETRY):
                lock.unlink()
                building.replace(target)
        finally:
            shutil.rmtree(building, ignore_errors=True)
