"""Every command that a report prints is accepted by the program, whatever flags its runs were started with."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from support.studies import judged, run

from smolsum.cli.main import app
from smolsum.report.build import build
from smolsum.report.collect import gather
from smolsum.report.compatibility import comparable
from smolsum.report.document import Table

KNOWN = typer.main.get_command(app).commands  # type: ignore[attr-defined]
ROWS = judged({name: [0.5, 0.6, 0.9] for name in ("composite", "coverage")}, ["a", "b", "c"])
VALUES = {"--set": "data.path=posts", "--seed": "7", "--preset": "study", "--runs-dir": "elsewhere/runs"}


def typed(*, joined: bool) -> list[str]:
    """A command line with every flag of `smolsum train`, its value behind a space or a `=`."""
    words = ["smolsum", "train"]
    for flag in KNOWN["train"].params:
        name, value = flag.opts[0], VALUES.get(flag.opts[0], "3")
        words += [name] if flag.is_flag else [f"{name}={value}"] if joined else [name, value]
    return words


def commands(runs: Path) -> set[str]:
    """The commands of all cells of the report of these runs."""
    page = build(comparable(gather([str(path) for path in sorted(runs.iterdir())], runs)))
    tables = [item for section in page.sections for item in section.items if isinstance(item, Table)]
    return {cell.command for table in tables for row in table.rows for cell in row if cell.command}


@pytest.fixture(params=[False, True], ids=["space", "equals"])
def found(tmp_path: Path, request: pytest.FixtureRequest) -> set[str]:
    for name, stages in (("one", {"length": ["length"], "quality": ["meteor"]}), ("two", {"included": ["length"]})):
        run(tmp_path / "runs", name, "LiquidAI/LFM2.5-350M", stages, ROWS, {"composite": 0.7, "coverage": 0.7})
        path = tmp_path / "runs" / name / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"argv": typed(joined=request.param)}))
    return commands(tmp_path / "runs")


def test_every_command_parses(found: set[str]) -> None:
    assert {shlex.split(one)[1] for one in found} == {"train", "baseline", "eval"}
    for command in found:
        program, name, *rest = shlex.split(command)
        assert program == "smolsum"
        try:
            KNOWN[name].make_context(name, rest).close()
        except typer.TyperException as error:
            pytest.fail(f"{command}: {error.format_message()}")


def test_commands_keep_what_was_typed_and_applies(found: set[str]) -> None:
    """All look for the runs where they are; the seed of training is not that of sampling."""
    for command in found:
        assert "--runs-dir elsewhere/runs" in command or re.search(r"eval \S*/runs/\w+", command)
        assert ("--preset study" in command) == (" eval " not in command)
        assert ("--seed 7" in command) == (" train " in command)
