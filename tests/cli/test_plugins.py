"""Rewards, tasks and criteria from a user's files, on the command line, and the ways to get them wrong."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from support.calls import Call, done
from support.refusals import assert_refused
from support.training import arguments, make_data, state

from smolsum.config.resolve import resolve
from smolsum.config.sections import to_toml
from smolsum.files import read_jsonl
from smolsum.runs.paths import RunPaths
from smolsum.runs.record_io import encode, read, read_summary, to_row
from smolsum.runs.records import RunInfo
from smolsum.tasks import TASKS
from smolsum.tasks.plugins import loaded_plugins, use_plugins

BREVITY = """
import smolsum

@smolsum.reward(range="[0, 1]", meaning="share of short words")
def brevity(completions, **kwargs):
    return [sum(len(word) < 6 for word in text.split()) / max(1, len(text.split())) for text in completions]
"""
TRL = '''
def starts_with_a(completions, **kwargs):
    """Whether it starts with an a, as TRL's documentation writes rewards."""
    return [1.0 if completion.lower().startswith("a") else 0.0 for completion in completions]
'''


@pytest.fixture(autouse=True)
def _without_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The next test has the shipped tasks, and no module of this one's."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    use_plugins()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """A maker of files in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMOLSUM_RUNS_DIR", "runs")

    def make(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return make


def test_a_reward_goes_where_built_in_signals_go(call: Call, write: Callable[[str, str], Path]) -> None:
    """In --reward, in --set and in the plan; the file is named in the settings."""
    write("brevity.py", BREVITY)
    dry = ["train", "--plugin", "brevity.py", "--dry-run", "--quiet"]
    code, out, err = call(*dry, "--reward=brevity-meteor", "--set=stages.quality.rewards.brevity=0.5")
    assert (code, err) == (0, "")
    assert 'plugins = "brevity.py"' in out
    assert "brevity = 0.5" in out
    assert "mask_truncated = false" in out.partition("[stages.quality]")[2]


def test_a_function_of_trl_needs_no_change(call: Call, write: Callable[[str, str], Path]) -> None:
    """It is chosen from a file by its name."""
    write("rewards.py", TRL)
    code, out, err = call("train", "--plugin=rewards.py:starts_with_a", "--reward=starts_with_a", "--dry-run", "-q")
    assert (code, err) == (0, "")
    assert "starts_with_a = 1.0" in out


def test_a_configuration_file_names_plugins(call: Call, write: Callable[[str, str], Path]) -> None:
    """As --plugin does."""
    write("brevity.py", BREVITY)
    write("mine.toml", '[run]\nplugins = "brevity.py"\n')
    out, _ = done(call("train", "--config=mine.toml", "--reward=brevity", "--dry-run", "-q"))
    assert "brevity = 1.0" in out


def test_the_next_command_has_no_plugins(call: Call, write: Callable[[str, str], Path]) -> None:
    """What one command loaded is gone."""
    write("brevity.py", BREVITY)
    assert call("train", "--plugin=brevity.py", "--reward=brevity", "--dry-run", "-q")[0] == 0
    assert_refused(call("train", "--reward=brevity", "--dry-run", "-q"), "unknown signal 'brevity'")
    assert "brevity" not in TASKS["tldr"].rewards.signals


def test_what_an_installed_package_adds(
    call: Call, write: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The entry points of its metadata are found; one that fails is left out with a warning."""
    write("installed_brevity.py", BREVITY)
    folder = tmp_path / "brevity-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: brevity\nVersion: 1.2\n")
    points = "[smolsum.plugins]\nbrevity = installed_brevity\nbroken = installed_broken\n"
    (folder / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    out, err = done(call("train", "--reward=brevity", "--dry-run", "-q"))
    assert "brevity = 1.0" in out
    assert "installed plugin broken is left out: ModuleNotFoundError" in err


def reward(name: str) -> str:
    """A file with one reward."""
    return f"import smolsum\n\n@smolsum.reward\ndef {name}(completions):\n    return [0.0] * len(completions)\n"


S = "import smolsum\n"

WRONG: list[tuple[str, str, list[str], str]] = [
    ("", "", ["--plugin=none.py"], "no plugin at"),
    ("p.txt", "x", ["--plugin=p.txt"], "plugin p.txt is not a Python file"),
    ("p.py", "def f(:\n", ["--plugin=p.py"], "plugin p.py cannot be loaded: line 1 of p.py:"),
    ("p.py", "\nimport no_such_module\n", ["--plugin=p.py"], "line 2: ModuleNotFoundError: No module named 'no_such_"),
    ("p.py", "x = 1\nx / 0\n", ["--plugin=p.py"], "line 2: ZeroDivisionError: division by zero"),
    ("p.py", "import sys\nsys.exit(3)\n", ["--plugin=p.py"], "line 2: SystemExit: 3"),
    ("p.py", "", ["--plugin=p.py"], "has no function marked with @smolsum.reward, no TASK and no CRITERIA"),
    ("p.py", TRL, ["--plugin=p.py"], "hint: --plugin p.py:starts_with_a"),
    ("p.py", TRL, ["--plugin=p.py:start"], "p.py has no 'start'"),
    ("p.py", "fine = 3\n", ["--plugin=p.py:fine"], "p.py: reward 'fine' is not a function"),
    ("p.py", reward("meteor"), ["--plugin=p.py"], "reward 'meteor' has the name of another signal"),
    ("p.py", reward("copied"), ["--plugin=p.py"], "reward 'copied' has the name of another signal, criterion, m"),
    ("p.py", reward("text"), ["--plugin=p.py"], "reward 'text' has the name of another signal, criterion, m"),
    ("p.py", reward("_own"), ["--plugin=p.py"], "reward '_own' has no usable name"),
    ("p.py", S + "smolsum.reward(name='a-b')(print)\n", ["--plugin=p.py"], "line 2: AttributeError"),
    ("p.py", S + "f = smolsum.reward(name='a-b')(lambda completions: [])\n", ["--plugin=p.py"], "no usable"),
    ("p.py", S + "@smolsum.reward(rang='x')\ndef f(completions): ...\n", ["--plugin=p.py"], "line 2: TypeE"),
    ("p.py", reward("f"), ["--plugin=p.py", "--plugin=./p.py:f"], "reward 'f' has the name of another signal"),
    ("p.py", reward("f"), ["--plugin=p.py", "--reward=g"], "unknown signal 'g'"),
    ("p.py", reward("f"), ["--plugin=p.py", "--set=stages.quality.rewards.g=1"], "unknown signal 'g'"),
    ("p.py", reward("f"), ["--plugin=p.py", "--set=rewards.on_error=go"], "must be one of stop, missing"),
    ("p.py", reward("f"), ["--plugin=p.py", "--set=rewards.timeout_s=0"], "rewards.timeout_s must be above"),
    ("p,q.py", reward("f"), ["--plugin=p,q.py"], "has a comma"),
    ("p.py", "TASK = 3\n", ["--plugin=p.py"], "p.py: TASK is int, not a Task"),
    ("p.py", "CRITERIA = ['brief']\n", ["--plugin=p.py"], "p.py: CRITERIA is not a list of criteria"),
    ("p.py", reward("f"), ["--task=p.py"], "--task p.py: the file has no TASK"),
    ("", "", ["--task=none.py"], "no plugin at"),
    ("m.toml", "[run]\nplugins = ['p.py']\n", ["--config=m.toml"], "m.toml:2: run.plugins must be a text in quotes"),
    ("p.py", S + "@smolsum.reward\ndef f(completions, solution): ...\n", ["--plugin=p.py", "--reward=f"],
     "asks for 'solution', and the train split has no such column, only prompts, completions"),
    ("p.py", S + "@smolsum.reward\ndef f(completions, /): ...\n", ["--plugin=p.py"], "by position only"),
    ("p.py", S + "@smolsum.reward\nclass F: ...\n", ["--plugin=p.py"], "has no function marked"),
    ("p.py", S + "@smolsum.reward(range=3)\ndef f(completions): ...\n", ["--plugin=p.py"],
     "cannot be loaded: line 2: reward(range=3) is not a text"),
    ("p.py", S + "@smolsum.reward('x')\ndef f(completions): ...\n", ["--plugin=p.py"], "this is not a function"),
    ("p.py", S + "CRITERIA = [smolsum.Criterion('', ())]\n", ["--plugin=p.py"], "line 2: criterion '' has no usable"),
    ("p.py", S + "CRITERIA = [smolsum.Criterion('kind', 'Is it?')]\n", ["--plugin=p.py"], "its steps are not sent"),
    ("p.py", S + "CRITERIA = [smolsum.Criterion('kind', ())]\n", ["--plugin=p.py"], "its steps are not sentences"),
    ("p.py", S + "CRITERIA = [smolsum.Criterion('kind', ('Is it?',), sees=('post',))]\n", ["--plugin=p.py"],
     "a judge cannot see ('post',)"),
    ("p.py", S + "CRITERIA = [smolsum.Criterion('kind', ('Is it?',), threshold=5)]\n", ["--plugin=p.py"],
     "the threshold 5 is not from 0 to 1"),
    ("p.py", "class E(Exception):\n    def __str__(self): raise ValueError\n\nraise E\n", ["--plugin=p.py"],
     "line 4: E"),
    ("p.py", reward("tokens"), ["--plugin=p.py"], "reward 'tokens' has the name of another signal, criterion, m"),
    ("p.py", reward("sample"), ["--plugin=p.py"], "reward 'sample' has the name of another signal, criterion, m"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "text", "flags", "says"), WRONG, ids=[f"{n}" for n in range(len(WRONG))])
def test_ways_to_get_it_wrong(
    file: str, text: str, flags: list[str], says: str, call: Call, write: Callable[[str, str], Path]
) -> None:
    """One clear error before anything is made."""
    if file:
        write(file, text)
    assert_refused(call("train", *flags, "--dry-run"), says, "hint:")
    assert not Path("runs").exists()


CAPITALS = """
import smolsum
from smolsum.rewards.signal import score_each

TASK = smolsum.Task(
    name="capitals",
    rewards=smolsum.TaskRewards(signals={"upper": score_each(lambda text: float(text.isupper()))}),
    evaluation=smolsum.TaskEvaluation(headlines=(smolsum.Metric("upper", "capitals", better="higher"),)),
    presets=smolsum.TaskPresets(defaults={"sampling": {"max_new_tokens": 16}}),
)
"""


def test_a_task_in_a_file(call: Call, write: Callable[[str, str], Path]) -> None:
    """It is chosen by its file; its name stands in the settings, and its data are shown."""
    write("capitals.py", CAPITALS)
    code, out, err = call("train", "--task=./capitals.py", "--dry-run", "-q")
    assert (code, err) == (0, "")
    assert 'name = "capitals"' in out
    assert "upper = 1.0" in out
    assert call("data", "./capitals.py", "--preview=1")[0] == 0
    assert_refused(
        call("train", "--plugin=./capitals.py", "--task=capital", "--dry-run", "-q"), "unknown task 'capital'"
    )
    write("tldr2.py", CAPITALS.replace('name="capitals"', 'name="tldr"'))
    assert_refused(call("train", "--task=./tldr2.py", "--dry-run", "-q"), "the name of task 'tldr' is taken")


def test_criteria_for_a_judge(call: Call, write: Callable[[str, str], Path]) -> None:
    """They join those of every task."""
    write("kind.py", "import smolsum\nCRITERIA = [smolsum.Criterion('kindness', ('Is the output kind?',))]\n")
    assert call("train", "--plugin=kind.py", "--dry-run", "-q")[0] == 0
    assert [one.name for one in TASKS["tldr"].evaluation.criteria][-1] == "kindness"
    write("twice.py", "import smolsum\nCRITERIA = [smolsum.Criterion(n, ('Is it?',)) for n in ('kind', 'kind')]\n")
    write("taken.py", "import smolsum\nCRITERIA = [smolsum.Criterion('meteor', ('Is it?',))]\n")
    for file in ("twice.py", "taken.py"):
        assert_refused(
            call("train", f"--plugin={file}", "--dry-run", "-q"),
            "has the name of another signal, criterion, metric or column",
        )
    write("faithful.py", "import smolsum\nCRITERIA = [smolsum.Criterion('faithfulness', ('Is it?',))]\n")
    assert_refused(
        call("train", "--plugin=faithful.py", "--dry-run", "-q"),
        "the criterion 'faithfulness' has the name of another signal, criterion, metric or column",
    )


def test_a_run_with_a_plugin(call: Call, write: Callable[[str, str], Path], tmp_path: Path) -> None:
    """Metrics, evaluations and rows have the reward; run.json and the run's copy say what was executed; the run goes on
    only with the same file, which is named again, and the copy is never executed by itself."""
    plugin = write("brevity.py", BREVITY)
    data = make_data(tmp_path / "posts", test=2)
    runs = Path("runs")
    settings = {"stages__length__steps": 1, "stages__quality__steps": 2, "train__validate_every": 2}
    train = [*arguments(data, runs, "mine", **settings), "--reward=brevity-meteor", "--plain"]
    _, err = done(call(*train, "--plugin=brevity.py"))
    assert re.search(r"stage=quality step=3/3 .* brevity=0\.\d\d meteor=0\.\d\d ", err)  # the signals of the sum
    run = RunPaths(runs / "mine")
    last = read_jsonl(run.metrics)[-1]
    assert {"rewards/brevity/mean", "rewards/meteor/mean"} <= set(last)
    assert read_jsonl(run.completions(2))[0]["rewards"].keys() == {"brevity", "meteor"}
    summary = read_summary(run.stage_evaluation("quality"))
    assert summary.metrics["brevity"] is not None
    assert summary.signals["brevity"] == {"range": "[0, 1]", "meaning": "share of short words"}
    (recorded,) = read(run.info, RunInfo).plugins
    content = plugin.read_bytes()
    assert (recorded.path, recorded.sha256) == (str(plugin), hashlib.sha256(content).hexdigest())
    assert (run.plugins / "brevity.py").read_bytes() == content
    assert run.resume_command == "smolsum train --resume mine --plugin brevity.py"

    for unnamed in (["train", "--resume=mine"], ["eval", "mine"]):
        code, _, err = call(*unnamed, "-q")
        assert (code, err.count("error:")) == (2, 1)
        assert "run mine executes the plugin brevity.py, and code that came with a run is executed only when" in err
        assert f"hint: --plugin {plugin}" in err
    assert_refused(
        call("train", f"--config={run.config}", "--name=other", "--dry-run", "-q"),
        "code that came with a run is executed only when it is named",
    )
    plugin.unlink()
    code, _, err = call("train", "--resume=mine", "-q")
    assert "hint: --plugin runs/mine/plugins/brevity.py" in err
    assert call("train", "--resume=mine", "--plugin=runs/mine/plugins/brevity.py", "-q")[0] == 0
    write("brevity.py", BREVITY.replace("< 6", "< 7"))
    for command in (["train", "--resume=mine"], ["eval", "mine"]):
        assert_refused(
            call(*command, "--plugin=brevity.py", "-q"), "plugin brevity.py has changed since run mine began (sha256 "
        )
    plugin.write_bytes(content)
    out, err = done(call("eval", "mine", "--plugin=brevity.py", "--split=validation", "-q"))
    assert read_summary(Path(out.strip())).metrics["brevity"] is not None
    assert json.loads((Path(out.strip()) / "origin.json").read_text())["task"]["plugin brevity"] == recorded.sha256
    out, err = done(call("report", "mine", "--output=report"))
    page = next(Path("report").rglob("*.html")).read_text()
    assert "share of short words" in page
    _, err = done(call("stats", "--paired", "runs/mine/eval/start-test", "runs/mine/eval/quality-test"))


def test_an_exception_loses_nothing(call: Call, write: Callable[[str, str], Path], tmp_path: Path) -> None:
    """At the third step: the steps before it are saved, the sample and the line are named, and the same command goes on
    once what failed outside of the file works again."""
    write("flaky.py", BREVITY + (
        "import pathlib\n\n@smolsum.reward\ndef flaky(prompts, completions):\n"
        "    flag = pathlib.Path('broken')\n"
        "    return [float(len(c)) if not flag.exists() or len(prompts) == 2 else 1 / 0 for c in completions]\n"
    ))  # fmt: skip
    data = make_data(tmp_path / "posts", test=2)
    settings = {"stages__length__steps": 2, "stages__quality__steps": 2, "train__validate_every": 0}
    train = [*arguments(data, Path("runs"), "mine", **settings), "--reward=flaky", "--plugin=flaky.py", "--quiet"]
    write("broken", "")
    code, _, err = call(*train)
    run = RunPaths(Path("runs/mine"))
    assert (code, err.count("error:"), state(run)) == (1, 1, "failed"), err
    assert "reward 'flaky' (flaky.py:" in err
    assert "failed on sample 0 of prompt" in err
    assert "ZeroDivisionError: division by zero (line 12 of flaky.py: return" in err
    assert "new run: smolsum train --config runs/mine/config.toml --plugin flaky.py --name OTHER, which takes" in err
    assert "(--model runs/mine/checkpoints/step-000002 begins with these weights)" in err
    assert "smolsum train --resume mine --plugin flaky.py goes on if the cause was outside of the file" in err
    assert len(read_jsonl(run.metrics)) == 2
    Path("broken").unlink()
    code, _, err = call("train", "--resume=mine", "--plugin=flaky.py", "--quiet")
    assert (code, state(run)) == (0, "finished"), err
    assert len(read_jsonl(run.metrics)) == 4
    write("broken", "")
    none = [*arguments(data, Path("runs"), "none", **settings), "--set=rewards.on_error=missing", "--reward=flaky"]
    code, _, err = call(*none, "--plugin=flaky.py", "--quiet")
    assert (code, err.count("error:"), state(RunPaths(Path("runs/none")))) == (1, 1, "failed"), err
    assert "gave no value for 8 of 8 completions" in err
    assert "no completion of 2 steps has a reward: flaky had no value for any" in err
    write("flaky.py", Path("flaky.py").read_text().replace("1 / 0", "1 / (len(c) % 2)"))
    again = ["train", "--config=runs/mine/config.toml", "--plugin=flaky.py", "--set=rewards.on_error=missing", "-q"]
    code, _, err = call(*again, "--name=again", "--model=runs/mine/checkpoints/step-000002")
    assert (code, state(RunPaths(Path("runs/again")))) == (0, "finished"), err
    nulls = pl.read_ndjson(Path("runs/again/completions/step-000003.jsonl"))["reward"].null_count()
    assert 0 < nulls < 8
    assert f"gave no value for {nulls} of 8 completions" in err


def test_a_configuration_file_names_plugins_relative_to_itself(call: Call, write: Callable[[str, str], Path]) -> None:
    """Wherever the command is typed; a plugin that is named twice is one."""
    folder = write("x.txt", "").parent / "conf"
    folder.mkdir()
    (folder / "brevity.py").write_text(BREVITY)
    (folder / "mine.toml").write_text('[run]\nplugins = "brevity.py"\n')
    dry = ["train", "--config=conf/mine.toml", "--reward=brevity", "--dry-run", "-q"]
    code, out, err = call(*dry)
    assert (code, err) == (0, "")
    assert 'plugins = "conf/brevity.py"' in out
    code, out, err = call(*dry, f"--plugin={folder / 'brevity.py'}")
    assert (code, err) == (0, "")


def test_an_installed_package_with_a_name_that_is_taken(
    call: Call, write: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its criteria, task or signal break no command: it is left out with a warning."""
    write("taken_criterion.py", "import smolsum\nCRITERIA = [smolsum.Criterion('meteor', ('Is it?',))]\n")
    write("taken_task.py", CAPITALS.replace('name="capitals"', 'name="tldr"'))
    write("taken_signal.py", reward("brevity"))
    folder = tmp_path / "several-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: several\nVersion: 1\n")
    names = ("taken_criterion", "taken_task", "taken_signal")
    (folder / "entry_points.txt").write_text("[smolsum.plugins]\n" + "".join(f"{n} = {n}\n" for n in names))
    monkeypatch.syspath_prepend(str(tmp_path))
    write("brevity.py", BREVITY)
    _, err = done(call("train", "--plugin=brevity.py", "--reward=brevity", "--dry-run", "-q"))
    for name in names:
        assert f"warning: installed plugin {name} is left out" in err


def test_a_reward_with_the_name_of_a_measured_column(
    call: Call, write: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the task shows it in no table: it must not replace what is measured."""
    write("own.py", reward("over_budget"))
    assert_refused(
        call("baseline", "--model=tiny", "--plugin=own.py", "--prompt=50-words", "--set=data.test_rows=1", "-q"),
        "reward 'over_budget' has the name of something that task tldr measures",
    )


@pytest.mark.slow
def test_a_grid_says_why_it_trains_again(call: Call, write: Callable[[str, str], Path]) -> None:
    """A run with the same settings and another file does not count, and both lists say what differs."""
    plugin = write("brevity.py", BREVITY)
    for name, text in (("old", BREVITY), ("older", BREVITY.replace("< 6", "< 7"))):
        plugin.write_text(text)
        use_plugins([str(plugin)])
        run = RunPaths(Path("runs", name))
        run.root.mkdir(parents=True)
        run.config.write_text(to_toml(resolve(TASKS, reward="brevity", flags={"run.name": name}).config))
        run.info.write_bytes(encode(RunInfo, {"plugins": [to_row(one.record()) for one in loaded_plugins()]}))
        run.status.write_text('{"state": "finished", "step": 3}')
        run.lock.touch()
    out, _ = done(call("runs", "--settings"))
    Path("runs/damaged").mkdir()
    Path("runs/damaged/config.toml").write_text(run.config.read_text())
    assert call("runs", "--settings")[0] == 0
    shutil.rmtree("runs/damaged")
    assert out.splitlines()[-1].startswith("plugin of brevity ")
    both = ["train", "--plugin=brevity.py", "--reward=brevity", "--reward=meteor", "--dry-run"]
    out, err = done(call(*both))
    assert "has changed since" not in err
    plugin.write_text(BREVITY.replace("< 6", "< 8"))
    out, err = done(call(*both))
    assert "is to train: the plugin of brevity has changed since old" in err


def test_a_resume_from_another_folder_says_where_the_run_began(
    call: Call, write: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its data have a path relative to that folder."""
    plugin = write("brevity.py", BREVITY)
    make_data(tmp_path / "posts")
    use_plugins([str(plugin)])
    run = RunPaths(tmp_path / "runs" / "mine")
    run.root.mkdir(parents=True)
    run.config.write_text(to_toml(resolve(TASKS, reward="brevity", flags={"data.path": "posts"}).config))
    facts = {"steps": {"length": 1}, "fingerprints": {"length": "f"}}
    run.info.write_bytes(encode(RunInfo, facts | {"plugins": [to_row(one.record()) for one in loaded_plugins()]}))
    run.lock.touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert_refused(
        call("train", f"--resume={run.root}", f"--plugin={plugin}", "-q"),
        "no data at 'posts': no such file or directory",
        f"hint: cd {tmp_path}, where the run began, as data.path = 'posts' is relative to that folder",
    )


def test_a_task_without_presets(call: Call, write: Callable[[str, str], Path]) -> None:
    """It trains the default model, with one stage that has its signals."""
    presets = '    presets=smolsum.TaskPresets(defaults={"sampling": {"max_new_tokens": 16}}),\n'
    assert presets in CAPITALS
    write("capitals.py", CAPITALS.replace(presets, ""))
    code, out, err = call("train", "--task=./capitals.py", "--dry-run", "-q")
    assert (code, err) == (0, "")
    assert 'path = "builtin:tiny"' in out
    assert "[stages.capitals.rewards]" in out


def test_a_reward_of_the_name_preference_stays_the_users(write: Callable[[str, str], Path], call: Call) -> None:
    """Runs with such a plugin are older than the signal, and need no judge."""
    write("mine.py", BREVITY.replace("def brevity", "def preference"))
    asked = ["train", "--strategy=included", "--reward=preference", "--dry-run", "--quiet"]
    out, err = done(call(*asked, "--plugin=mine.py"))
    assert "preference = 1.0" in out
    assert_refused(call(*asked), "judge.model is empty")
