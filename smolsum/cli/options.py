"""The flags that `smolsum eval` and `smolsum baseline` share, and what they make of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from smolsum.tasks import DEFAULT_TASK, NAMES

SplitFlag = Annotated[Literal["train", "validation", "test"], typer.Option("--split", help="Split of the data.")]
JudgeFlag = Annotated[
    str | None,
    typer.Option(
        "--judge",
        metavar="MODEL",
        help="Model that judges, at $OPENAI_BASE_URL or OpenAI; none: nobody.  [default: $SMOLSUM_JUDGE_MODEL; "
        "gpt-5-mini-2025-08-07 where OPENAI_BASE_URL is set; else nobody]",
        show_default=False,
    ),
]
SecondFlag = Annotated[
    str | None,
    typer.Option("--second-judge", metavar="MODEL", help="Another judge, for how far the two agree."),
]
RoundsFlag = Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="Times that each example is judged.")]
ConcurrencyFlag = Annotated[
    int, typer.Option("--concurrency", metavar="N", min=1, help="Questions to the judge at a time.")
]
DeadlineFlag = Annotated[
    float, typer.Option("--deadline", metavar="S", min=0.1, help="Seconds that an answer of the judge may take.")
]
AttemptsFlag = Annotated[
    int, typer.Option("--attempts", metavar="N", min=1, help="Times that a question is asked before it is missing.")
]
TemperatureFlag = Annotated[
    float, typer.Option("--temperature", metavar="T", min=0.0, help="Sampling temperature; 0 is greedy.")
]
SeedFlag = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of sampling above temperature 0.")]
TaskFlag = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help=f"What is asked of the model: {', '.join(NAMES)}.  [default: {DEFAULT_TASK}]",
    ),
]
SamplesFlag = Annotated[
    int,
    typer.Option("--samples", metavar="N", min=1, help="Completions of each prompt, for pass@k; above temperature 0."),
]
NameFlag = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Folder of the results.", show_default=False)
]
ConfigFlag = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings of a model that is no run, in TOML.")
]
SetsFlag = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting, e.g. data.path=DIR; repeatable.")
]
RunsFlag = Annotated[
    str | None,
    typer.Option("--runs-dir", metavar="DIR", help="Directory of all runs.  [default: $SMOLSUM_RUNS_DIR or runs]"),
]
WorkerFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--worker",
        metavar="URL",
        help="Let this `smolsum serve-worker` sample; repeatable.  [default: $SMOLSUM_WORKERS, by comma]",
        show_default=False,
    ),
]
ModelFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="Preset (tiny, tiny-lfm, qwen, lfm), directory or hub id; repeatable; all: the study's qwen and lfm.",
        show_default=False,
    ),
]
FreshFlag = Annotated[
    bool, typer.Option("--fresh", help="Ask the judge also what it has told another evaluation: use no cache.")
]
YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the judge is paid.")]


def runs_folder(given: str | None) -> Path:
    """Where runs and evaluations lie."""
    return Path(given or os.environ.get("SMOLSUM_RUNS_DIR") or "runs")


def workers_named(given: list[str] | None) -> str:
    """The workers that sample, by comma; none: the model is run here."""
    return ",".join(given) if given else os.environ.get("SMOLSUM_WORKERS", "")


def silence_hub_bars() -> None:
    """Switches off the progress bars of the Hugging Face libraries, unless the user has set them.

    Both libraries read these variables when imported.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
