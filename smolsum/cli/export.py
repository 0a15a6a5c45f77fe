"""`smolsum export` and `smolsum push`."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Literal

import typer

from smolsum import console
from smolsum.cli.options import RunsFlag, runs_folder
from smolsum.config.hub import hub_name, silence_hub_client
from smolsum.errors import SmolsumError, UnreachableError, UsageError

LOGIN = "hf auth login, or HF_TOKEN=…"
AGAIN = "try again later: no file was changed there"
SILENT_S = 120.0
"""that a hub may take to answer; its client would wait for ever"""
PASSING = (408, 429)
"""statuses below 500 of a hub that would accept the same later"""


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
    _write(run, folder, flags, title=folder.expanduser().absolute().name)
    console.data(str(folder))


def push(
    source: Annotated[
        str,
        typer.Argument(metavar="RUN|CHECKPOINT|DIR", help="A run, a checkpoint, or a directory of `smolsum export`."),
    ],
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub; made if missing.")],
    flags: ExportFlags,
    private: Annotated[
        bool, typer.Option("--private", help="Upload to a private repository only; a new one is private.")
    ] = False,
    revision: Annotated[
        str, typer.Option(metavar="BRANCH", help="Branch; made if missing.  [default: main]", show_default=False)
    ] = "",
    message: Annotated[
        str, typer.Option(metavar="TEXT", help="Message of the commit.", show_default=False)
    ] = "Upload a model trained with smolsum",
) -> None:
    """Upload a trained model with its card and evidence to the Hugging Face hub; print its address.

    \b
      smolsum push runs/mine OWNER/NAME --license apache-2.0 --private
    To read and edit the card first:
      smolsum export runs/mine my-model && smolsum push my-model OWNER/NAME

    Needs a token that may write: `hf auth login`, or HF_TOKEN. All files arrive as one commit, or none; an earlier
    export's files that are not among them are removed, all others stay.
    """
    name = hub_name(repository)
    if name is None or str(name) != name.id:
        raise UsageError(f"{repository!r} is not the name of a repository", hint="OWNER/NAME, as on the hub")
    from huggingface_hub import get_token

    if get_token() is None:
        raise UsageError("the hub takes uploads with a token only: none was found", hint=LOGIN)
    with _exported(source, flags, name.id.partition("/")[2]) as folder:
        console.data(_upload(folder, name.id, private=private, revision=revision, message=message))


@contextmanager
def _exported(source: str, flags: ExportFlags, title: str) -> Iterator[Path]:
    """Give the folder with the exported files: `source` itself, or a temporary one for a run."""
    folder = Path(source).expanduser()
    if (folder / "evidence").is_dir() and (folder / "README.md").is_file():
        given = {"--best": flags.best, "--adapter": flags.adapter, "--license": flags.license}
        given |= {"--format": "" if flags.format == "hf" else flags.format, "--gguf-type": flags.gguf_type}
        if chosen := next((flag for flag, value in given.items() if value), None):
            raise UsageError(f"{source} is exported already, so it takes no {chosen}", hint="export the run again")
        yield folder
        return
    if folder.is_dir() and (folder / "config.json").is_file() and not (folder / "meta.json").is_file():
        raise UsageError(f"{source} is a model, not a run or an export", hint="smolsum export RUN DIR makes an export")
    with tempfile.TemporaryDirectory(prefix="smolsum-") as place:
        made = Path(place) / title
        _write(source, made, flags, title=title)
        yield made


def _upload(folder: Path, repository: str, *, private: bool, revision: str, message: str) -> str:
    """Upload the files as one commit, and return the address. Raises UsageError for a card that is not a text, and for
    a public repository where a private one is wanted, and what `_hub_errors` raises."""
    from smolsum.results.report.card import CARD, PLACE

    try:
        card = (folder / CARD).read_text(encoding="utf-8").replace(PLACE, repository)
    except UnicodeDecodeError as error:
        raise UsageError(f"{folder / CARD} is not text in UTF-8", hint="save it as UTF-8") from error
    with _hub_errors(repository), warnings.catch_warnings(record=True) as noted:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_session

        silence_hub_client()
        get_session().timeout = SILENT_S
        api, branch = HfApi(library_name="smolsum"), revision or "main"
        # as the commit will, but before a repository is made for it; ModelCard.validate asks huggingface.co alone
        content = {"content": card, "repoType": "model"}
        answer = get_session().post(f"{api.endpoint}/api/validate-yaml", json=content)
        if answer.status_code == HTTPStatus.BAD_REQUEST:
            raise ValueError("; ".join(str(error.get("message")) for error in answer.json().get("errors", ())))
        address = api.create_repo(repository, private=private or None, exist_ok=True)
        if private and not api.repo_info(repository).private:
            raise UsageError(
                f"{repository} exists, and is public",
                hint="make it private in its settings on the hub, or leave --private out",
            )
        if revision:
            api.create_branch(repository, branch=revision, exist_ok=True)
        files = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
        files = {name: path for name, path in files.items() if not any(part[0] == "." for part in name.parts)}
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd(name.as_posix(), card.encode() if name == Path(CARD) else path)
            for name, path in files.items()
        ]
        there = api.list_repo_files(repository, revision=branch)
        operations += [CommitOperationDelete(one) for one in there if Path(one) not in files and _is_exported(one)]
        warnings.simplefilter("always", UserWarning)  # what the hub says of the card
        api.create_commit(repository, operations, commit_message=message, revision=branch)
    for one in noted:
        if issubclass(one.category, UserWarning):
            console.warn(" ".join(str(one.message).split()))
    return f"{address}/tree/{revision}" if revision else str(address)


def _is_exported(name: str) -> bool:
    """Return whether `smolsum export` writes files like this one. `upload_folder` has patterns for it whose `*` matches
    folders too: files of the owner would go."""
    top = name.partition("/")[0]
    return top in ("evidence", "figures") or (
        top == name and (name.endswith((".safetensors", ".json", ".jinja", ".gguf")) or name == "Modelfile")
    )


@contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    """Turn errors of the hub's client into UsageError where the user can help, else into UnreachableError."""
    from huggingface_hub import constants, errors

    try:
        yield
    except SmolsumError:
        raise
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        reason = error.server_message or f"status {status}"
        if status == 401:
            raise UsageError(f"the hub does not accept the token: {reason}", hint=LOGIN) from error
        if status == 403:
            hint = "check the owner, and that the token may write (hf auth whoami)"
            raise UsageError(f"you may not write to {repository}: {reason}", hint=hint) from error
        if status < 500 and status not in PASSING:
            raise SmolsumError(f"the hub refuses {repository}: {reason}", hint="correct what it names") from error
        raise UnreachableError(f"the hub failed: {reason}", hint=AGAIN) from error
    except json.JSONDecodeError as error:  # a page of a proxy, or of a hub that is down
        raise UnreachableError("the hub failed: its answer is not JSON", hint=AGAIN) from error
    except ValueError as error:  # so the client reports what the hub says of the card, or of a file
        reason = " ".join(str(error).split())
        raise SmolsumError(f"the hub refuses {repository}: {reason}", hint="correct what it names") from error
    except Exception as error:  # the client's connection errors share no base that it exports
        if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError | TimeoutError):
            raise SmolsumError(f"cannot read what to upload: {error}", hint="smolsum push again") from error
        offline = " (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else ""
        reason, cause = (str(error) or type(error).__name__).splitlines()[0], error.__cause__
        if isinstance(cause, errors.HfHubHTTPError):  # of the store that takes large files
            reason += f" It said: {cause.server_message or f'status {cause.response.status_code}'}"
        raise UnreachableError(f"the hub does not answer{offline}: {reason}", hint=AGAIN) from error


def _write(reference: str, folder: Path, flags: ExportFlags, *, title: str) -> None:
    """Write what the command exports into a new or empty folder, or nothing."""
    from smolsum.results.export import find_exported, write_export

    if flags.format != "gguf" and flags.gguf_type:
        raise UsageError(f"--gguf-type {flags.gguf_type} is for GGUF files", hint="add --format gguf")
    run, checkpoint = find_exported(reference, runs_folder(flags.runs_dir), best=flags.best)
    write_export(
        run,
        checkpoint,
        folder,
        title=title,
        adapter=flags.adapter,
        gguf_type=flags.gguf_type or "Q8_0" if flags.format == "gguf" else "",
        license=flags.license,
    )
