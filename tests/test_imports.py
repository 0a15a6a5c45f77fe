"""What imports load, each seen from a new process."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

HEAVY = (
    "datasets",
    "deepeval",
    "httpx",
    "huggingface_hub",
    "mlx",
    "mlx_lm",
    "nltk",
    "numpy",
    "polars",
    "rich",
    "rouge_score",
    "sacrebleu",
    "scipy",
    "smolsum.evaluate.judging",
    "textual",
    "torch",
    "transformers",
)
HELP_MODULES = 250


@functools.cache
def loaded(code: str) -> frozenset[str]:
    """Returns the heavy libraries that a new process has loaded after running the code."""
    probe = f"{code}\nimport sys\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return frozenset(HEAVY) & frozenset(run.stderr.splitlines())


@pytest.mark.parametrize(
    "line",
    [
        ["--help"],
        ["train", "--help"],
        ["stats", "--help"],
        ["watch", "--help"],
        ["track", "--help"],
        ["eval", "--help"],
        ["baseline", "--help"],
        ["--version"],
        ["trian"],
    ],
)
def test_command_line_is_light(line: list[str]) -> None:
    """Help, version and a mistyped command load none of the heavy libraries, Rich included."""
    assert loaded(f"from smolsum.cli.main import main\nmain({line})") == set()


@pytest.mark.parametrize("command", ["train", "eval", "baseline", "data"])
def test_help_lists_tasks(command: str) -> None:
    """A new task appears in the help, which loads no task."""
    code = "import smolsum.tasks\nsmolsum.tasks.NAMES += ('capitals',)\nfrom smolsum.cli.main import main\n"
    probe = f"{code}main(['{command}', '--help'])\nassert 'TASKS' not in vars(smolsum.tasks)"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert "tldr, ab-judge, doc-qa, strict-json, capitals, or the file of a task." in " ".join(run.stdout.split())


def test_dry_run_needs_no_mlx() -> None:
    """A quiet dry run loads nothing that computes."""
    # the data are read with polars
    assert loaded("from smolsum.cli.main import main\nmain(['train', '--dry-run', '--quiet'])") <= {"polars"}


def test_progress_is_light() -> None:
    """A run that is not on a terminal shows its progress without Rich."""
    code = "from smolsum.training.progress import Progress\nwith Progress() as p: p.phase('loading')"
    assert loaded(code) == set()


@pytest.mark.parametrize("module", ["runs.paths", "runs.run_writer", "runs.checkpoints", "runs.reader"])
def test_run_directory_needs_no_mlx(module: str) -> None:
    """Run directories can be read on a machine without MLX."""
    assert not {"mlx", "mlx_lm", "transformers", "datasets"} & loaded(f"import smolsum.{module}")


def test_statistics_need_no_mlx() -> None:
    """Comparing scores works on a machine without MLX and loads no model library."""
    code = "import smolsum.stats, smolsum.stats.compare, smolsum.stats.loading"
    assert loaded(code) <= {"numpy", "polars", "scipy"}


def test_reports_need_no_mlx() -> None:
    """A report, and a list of runs, are made on a machine without MLX."""
    never = {"datasets", "deepeval", "mlx", "mlx_lm", "textual", "torch", "transformers"}
    assert not never & loaded("import smolsum.report.build, smolsum.report.collect, smolsum.report.render.write")
    assert not never & loaded("import smolsum.runs.listing")


def test_view_needs_no_mlx() -> None:
    """Runs can be watched on a machine without MLX; a page of text needs no app either."""
    assert loaded("import smolsum.watch.app, smolsum.watch.start_trainer") <= {"rich", "textual"}
    assert loaded("import smolsum.watch.layout, smolsum.watch.start_trainer") <= {"rich"}


def test_training_needs_no_view() -> None:
    """The trainer loads nothing of the view."""
    assert not {"textual"} & loaded("import smolsum.training.loop")


@pytest.mark.parametrize("module", ["training.loop", "evaluate.run"])
def test_deepeval_is_for_the_judge(module: str) -> None:
    """Training, and evaluation without a judge, load neither the judge nor DeepEval."""
    assert not {"deepeval", "smolsum.evaluate.judging"} & loaded(f"import smolsum.{module}")


def test_judge_is_quiet() -> None:
    """DeepEval connects to no server, prints nothing, and does not read .env in the working directory, neither when it
    is imported nor when it measures."""
    code = (
        "import asyncio, os, pathlib, sys, tempfile\n"
        "sys.addaudithook(lambda event, _: event in ('socket.connect', 'socket.getaddrinfo') and os._exit(9))\n"
        "os.chdir(tempfile.mkdtemp())\n"
        "pathlib.Path('.env').write_text('FROM_DOTENV=1')\n"
        "from smolsum.evaluate.geval import fingerprint\n"
        "from smolsum.tasks.tldr.criteria import CRITERIA\n"
        "for criterion in CRITERIA: asyncio.run(fingerprint(criterion))\n"
        "from deepeval.config.settings import get_settings\n"
        "assert get_settings().DEEPEVAL_TELEMETRY_OPT_OUT\n"
        "assert 'FROM_DOTENV' not in os.environ\n"
        "assert os.listdir() == ['.env']"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_rewards_load_their_library_on_use() -> None:
    """Naming the signals loads none of the libraries that compute them."""
    assert loaded("import smolsum.rewards") == set()


def test_help_loads_little() -> None:
    """`smolsum --help` stays fast: few modules beyond those of Python's start, and of libraries only what it draws
    with (`benchmarks/startup.py` measures the time)."""
    code = (
        "import sys\nbefore = set(sys.modules)\nfrom smolsum.cli.main import main\nmain(['--help'])\n"
        "print(*(set(sys.modules) - before), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = run.stderr.split()
    libraries = {name.split(".")[0] for name in new} - set(sys.stdlib_module_names)
    assert libraries <= {"smolsum", "typer", "click", "shellingham", "annotated_doc", "typing_extensions", "xxhash"}
    assert len(new) < HELP_MODULES
