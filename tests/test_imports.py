"""What imports load, each seen from a new process."""

import ast
import functools
import importlib
import os
import subprocess
import sys

import pytest
from support.places import ROOT

HEAVY = frozenset((
    "datasets", "deepeval", "httpx", "huggingface_hub", "mlx", "mlx_lm", "nltk", "numpy", "polars", "rich",
    "rouge_score", "sacrebleu", "scipy", "smolsum.results.evaluate.judging", "textual", "torch", "transformers",
))  # fmt: skip
MODELS = {"datasets", "mlx", "mlx_lm", "transformers"}
APPS = {"deepeval", "textual", "torch"}
RUN_MAIN = "from smolsum.cli.main import main; main"
HELP_MODULES = 250


@functools.cache
def loaded(code: str) -> frozenset[str]:
    """Returns the heavy libraries that a new process has loaded after running the code."""
    probe = f"{code}\nimport sys\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return HEAVY & frozenset(run.stderr.splitlines())


@pytest.mark.parametrize(
    "line",
    [
        *("--help", "train --help", "stats --help", "watch --help", "track --help", "eval --help", "baseline --help"),
        *("--version", "trian"),
    ],
)
def test_command_line_is_light(line: str) -> None:
    """Help, version and a mistyped command load none of the heavy libraries, Rich included."""
    assert loaded(f"{RUN_MAIN}({line.split()})") == set()


@pytest.mark.parametrize("command", ["train", "eval", "baseline", "data"])
def test_help_lists_tasks(command: str) -> None:
    """A new task appears in the help, which loads no task."""
    code = "import smolsum.tasks\nsmolsum.tasks.NAMES += ('capitals',)\nfrom smolsum.cli.main import main\n"
    probe = f"{code}main(['{command}', '--help'])\nassert 'TASKS' not in vars(smolsum.tasks)"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert "tldr, ab-judge, doc-qa, strict-json, capitals, or the file of a task." in " ".join(run.stdout.split())


@pytest.mark.parametrize(
    ("code", "may"),
    [
        # nothing that computes; the data are read with polars
        (f"{RUN_MAIN}(['train', '--dry-run', '--quiet'])", {"polars"}),
        # a run that is not on a terminal shows its progress without Rich
        ("from smolsum.grpo.progress import Progress\nwith Progress() as p: p.phase('loading')", set()),
        # scores are compared without MLX and without any library of models
        (
            "import smolsum.stats, smolsum.results.comparison_text, smolsum.results.score_columns",
            {"numpy", "polars", "scipy"},
        ),
        # the model of a page needs no app
        ("import smolsum.watch.app, smolsum.cli.start_trainer", {"rich", "textual"}),
        ("import smolsum.watch.model, smolsum.cli.start_trainer", {"rich"}),
        # naming the signals loads none of the libraries that compute them
        ("import smolsum.rewards", set()),
    ],
)
def test_what_is_light_loads_little(code: str, may: set[str]) -> None:
    assert loaded(code) <= may


@pytest.mark.parametrize(
    ("modules", "never"),
    [
        # run directories, lists of them and reports are read on a machine without MLX
        *((f"smolsum.runs.{name}", MODELS) for name in ("paths", "writer", "checkpoints", "reader", "listing")),
        ("smolsum.runs.listing", APPS),
        ("smolsum.results.report.build, smolsum.results.report.collect, smolsum.results.report.write", MODELS | APPS),
        # the trainer loads nothing of the view; it and an evaluation without a judge neither judge nor DeepEval
        ("smolsum.grpo.loop", {"textual", "deepeval", "smolsum.results.evaluate.judging"}),
        ("smolsum.results.evaluate.run", {"deepeval", "smolsum.results.evaluate.judging"}),
    ],
)
def test_what_a_package_never_loads(modules: str, never: set[str]) -> None:
    assert not never & loaded(f"import {modules}")


def test_judge_is_quiet() -> None:
    """DeepEval connects to no server, prints nothing, and does not read .env in the working directory, neither when it
    is imported nor when it measures."""
    code = (
        "import asyncio, os, pathlib, sys, tempfile\n"
        "sys.addaudithook(lambda event, _: event in ('socket.connect', 'socket.getaddrinfo') and os._exit(9))\n"
        "os.chdir(tempfile.mkdtemp())\n"
        "pathlib.Path('.env').write_text('FROM_DOTENV=1')\n"
        "from smolsum.results.evaluate.geval import fingerprint\n"
        "from smolsum.tasks.tldr.criteria import CRITERIA\n"
        "for criterion in CRITERIA: asyncio.run(fingerprint(criterion))\n"
        "from deepeval.config.settings import get_settings\n"
        "assert get_settings().DEEPEVAL_TELEMETRY_OPT_OUT\n"
        "assert 'FROM_DOTENV' not in os.environ\n"
        "assert os.listdir() == ['.env']"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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


def test_benchmarks_and_scripts_import_what_there_is() -> None:
    """Names of the package that have moved, as nothing of the gate runs most of them."""
    for path in sorted(path for folder in ("benchmarks", "scripts") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("smolsum"):
                module = importlib.import_module(str(node.module))
                for name in node.names:
                    assert hasattr(module, name.name) or importlib.import_module(f"{node.module}.{name.name}"), path


@pytest.mark.parametrize(("given", "found"), [({}, "0"), ({"MLX_ENABLE_TF32": "1"}, "1")])
def test_float32_products_are_not_rounded_on_a_gpu(given: dict[str, str], found: str) -> None:
    """Unless the user wants it: MLX reads the variable when it first multiplies."""
    environ = {key: value for key, value in os.environ.items() if key != "MLX_ENABLE_TF32"} | given
    probe = "import smolsum.policy, os, sys; print(os.environ['MLX_ENABLE_TF32'], 'mlx.core' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, env=environ)
    assert run.stdout.split() == [found, "False"]
