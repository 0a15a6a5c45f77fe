"""`smolsum export`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as with_fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from smolsum import console
from smolsum.cli.options import RunsFlag, runs_folder
from smolsum.errors import SmolsumError, UsageError
from smolsum.files import locked, replace, writing

if TYPE_CHECKING:
    from smolsum.policy.load import Policy
    from smolsum.runs.checkpoints import Checkpoint
    from smolsum.runs.paths import RunPaths

REMEDY = "smolsum export again"


@dataclass(frozen=True)
class ExportFlags:
    """What is exported of a run."""

    best: Annotated[
        bool, typer.Option("--best", help="The checkpoint that did best on the validation split, not the last.")
    ] = False
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Only the LoRA adapters, for a base model from the hub.")
    ] = False
    format: Annotated[
        Literal["hf", "gguf"], typer.Option(help="hf: Hugging Face layout; gguf: a file for llama.cpp and Ollama.")
    ] = "hf"
    gguf_type: Annotated[
        Literal["F16", "Q8_0", "Q4_0"] | None,
        typer.Option(
            case_sensitive=False, help="Type of the weights in a GGUF file.  [default: Q8_0]", show_default=False
        ),
    ] = None
    license: Annotated[
        str, typer.Option(metavar="NAME", help="Licence that the card names, such as apache-2.0.", show_default=False)
    ] = ""
    runs_dir: RunsFlag = None


def export(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN|CHECKPOINT", help="A run (its last checkpoint), or the directory of a checkpoint."),
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write; a new or empty directory.")],
    flags: ExportFlags,
) -> None:
    """Write a trained model as others load it, with a model card and the evidence for its numbers; print the directory.

    \b
      smolsum export runs/mine my-model
      smolsum push my-model OWNER/NAME
    For llama.cpp and Ollama:
      smolsum export runs/mine my-model --format gguf --gguf-type Q4_0

    The directory has the whole model in the Hugging Face layout (LoRA adapters merged into it), which transformers,
    mlx-lm and vLLM load, a chat template with the system message of the training, README.md, and in evidence/ the
    settings, metrics and scores that the card's numbers are from. Texts of the data, users' code and paths of this
    machine stay here. With --format gguf the model is one GGUF file, with a Modelfile for Ollama.
    """
    write_export(run, folder, flags, title=folder.expanduser().absolute().name)
    console.data(str(folder))


def write_export(reference: str, folder: Path, flags: ExportFlags, *, title: str) -> None:
    """Write what the command exports into a new or empty folder, or nothing. Raises UsageError for a run or folder that
    does not serve."""
    from smolsum.policy.export import export_adapters, export_gguf, export_policy
    from smolsum.report.card import CardFacts, card_files
    from smolsum.runs.checkpoints import full_disk_is_os_error
    from smolsum.runs.evidence import write_evidence
    from smolsum.runs.paths import safe_name
    from smolsum.runs.record_io import has_scores, read_object, read_summary

    if flags.format == "gguf" and flags.adapter:
        raise UsageError("a GGUF file has the whole model, not the adapters", hint="leave --adapter out")
    if flags.format != "gguf" and flags.gguf_type:
        raise UsageError(f"--gguf-type {flags.gguf_type} is for GGUF files", hint="add --format gguf")
    run, checkpoint = _find(reference, flags)
    with _building(folder) as building:
        evidence = write_evidence(run, checkpoint.step, building / "evidence", REMEDY, console.warn)
        if not any(
            read_summary(one).step == checkpoint.step for one in evidence.evaluations.glob("*") if has_scores(one)
        ):
            raise UsageError(
                f"step {checkpoint.step} of {run.name} was not evaluated, so its card would have no results",
                hint=f"smolsum eval {checkpoint.path}",
            )
        policy = _load(run, checkpoint)
        with writing(folder, REMEDY), full_disk_is_os_error(building):
            file, dtype = "", str(policy.dtype)
            if flags.format == "gguf":
                dtype, most = flags.gguf_type or "Q8_0", int(read_object(run.config)["sampling"]["max_new_tokens"])
                file, count = export_gguf(policy, building, kind=dtype, name=safe_name(title), most=most)
            else:
                count = (export_adapters if flags.adapter else export_policy)(policy, building)
        facts = CardFacts(title, checkpoint.step, count, dtype, policy.system, flags.license, flags.adapter, file)
        for name, text in card_files(evidence, facts, building).items():
            replace(building / name, text.encode("utf-8", "backslashreplace"), REMEDY)
    if not flags.license:
        console.warn("the card names no licence: --license NAME; that of the base model binds too")


def _find(reference: str, flags: ExportFlags) -> tuple[RunPaths, Checkpoint]:
    from smolsum.runs.checkpoints import best_of, find_checkpoint, list_checkpoints, no_best, whole
    from smolsum.runs.paths import open_run
    from smolsum.runs.record_io import read
    from smolsum.runs.records import RunSettings

    runs_dir = runs_folder(flags.runs_dir)
    run, checkpoint = find_checkpoint(reference, runs_dir)
    if run is None or checkpoint is None:
        open_run(reference, runs_dir)  # says what is wrong
        raise UsageError(f"{reference} is not a run", hint="smolsum runs lists them")
    if not flags.best:
        return run, checkpoint
    best = best_of(list_checkpoints(run), read(run.config, RunSettings).stages)
    if best is None:
        raise no_best(reference)
    return run, whole([best], best.path)


def _load(run: RunPaths, checkpoint: Checkpoint) -> Policy:
    """Return the policy of a checkpoint, in the type that it was trained in."""
    from smolsum.config.hub import hub_name
    from smolsum.config.sections import LoraConfig, ModelConfig
    from smolsum.policy.export import load_checkpoint
    from smolsum.policy.load import DTYPES
    from smolsum.runs.record_io import read, read_object
    from smolsum.runs.records import RunInfo

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
    with locked(lock, f"{folder} is being exported to", REMEDY):
        try:
            for path in set(building.iterdir()) - {lock}:  # what a killed export left
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            yield building
            with writing(folder, REMEDY):
                lock.unlink()
                building.replace(target)
        finally:
            shutil.rmtree(building, ignore_errors=True)
