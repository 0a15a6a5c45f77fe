"""Rewards, tasks and criteria from a user's files, on the command line, and the ways to get them wrong."""

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
from support.places import ROOT
from support.refusals import assert_refused
from support.training import arguments, make_data, state

from smolsum.config.resolve import resolve, to_toml
from smolsum.errors import PluginError, SmolsumError
from smolsum.files import read_jsonl
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import RunInfo
from smolsum.runs.typed_json import encode, read, read_summary, to_row
from smolsum.tasks import TASKS
from smolsum.tasks.plugins import loaded_plugins, use_plugins

Plan = Callable[..., str]
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


def write(name: str, text: str) -> Path:
    """A file in the current directory."""
    path = Path.cwd() / name
    path.write_text(text, encoding="utf-8")
    return path


def install(name: str, *modules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose entry points name these modules of the current directory."""
    folder = Path(f"{name}-1.2.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (folder / "entry_points.txt").write_text("[smolsum.plugins]\n" + "".join(f"{n} = {n}\n" for n in modules))
    monkeypatch.syspath_prepend(str(Path.cwd()))


@pytest.fixture
def plan(call: Call) -> Plan:
    """The settings that a dry run of a training prints, which has nothing to warn of."""

    def printed(*flags: str) -> str:
        out, err = done(call("train", *flags, "--dry-run", "--quiet"))
        assert err == ""
        return out

    return printed


def test_what_a_file_adds_goes_where_built_in_things_go(plan: Plan) -> None:
    """Its reward in --reward, in --set and in the plan; the file is named in the settings. A function of TRL's needs no
    change, and is chosen by its name; criteria join those of every task."""
    write("brevity.py", BREVITY)
    for flags, stage in (([], "constrained"), (["--strategy=finetuned"], "quality")):
        weight = f"--set=stages.{stage}.rewards.brevity=0.5"
        out = plan("--plugin", "brevity.py", "--reward=brevity-meteor", weight, *flags)
        assert 'plugins = "brevity.py"' in out
        assert "brevity = 0.5" in out
        assert "mask_truncated = false" in out.partition(f"[stages.{stage}]")[2]
    write("rewards.py", TRL)
    assert "starts_with_a = 1.0" in plan("--plugin=rewards.py:starts_with_a", "--reward=starts_with_a")
    write("kind.py", criterion("'kindness', ('Is the output kind?',)"))
    plan("--plugin=kind.py")
    assert [one.name for one in TASKS["tldr"].evaluation.criteria][-1] == "kindness"


def test_a_configuration_file_names_plugins_relative_to_itself(plan: Plan) -> None:
    """As --plugin does, wherever the command is typed; a plugin that is named twice is one."""
    Path("conf").mkdir()
    brevity = write("conf/brevity.py", BREVITY)
    write("conf/mine.toml", '[run]\nplugins = "brevity.py"\n')
    out = plan("--config=conf/mine.toml", "--reward=brevity")
    assert 'plugins = "conf/brevity.py"' in out
    assert "brevity = 1.0" in out
    plan("--config=conf/mine.toml", "--reward=brevity", f"--plugin={brevity}")


def test_the_next_command_has_no_plugins(call: Call, plan: Plan) -> None:
    write("brevity.py", BREVITY)
    plan("--plugin=brevity.py", "--reward=brevity")
    assert_refused(call("train", "--reward=brevity", "--dry-run", "-q"), "unknown signal 'brevity'")
    assert "brevity" not in TASKS["tldr"].rewards.signals


def test_what_an_installed_package_adds(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry points of its metadata are found. One that fails, or whose criteria, task or signal have a name that is
    taken, breaks no command: it is left out with a warning."""
    write("brevity.py", BREVITY)
    write("a_criterion.py", criterion("'meteor', ('Is it?',)"))
    write("a_task.py", TAKEN)
    write("a_signal.py", reward("brevity"))
    left_out = ("a_criterion", "a_task", "a_signal", "not_there")
    install("several", "brevity", *left_out, monkeypatch=monkeypatch)
    named = [f"warning: installed plugin {name} is left out" for name in left_out]
    out, _ = done(call("train", "--reward=brevity", "--dry-run", "-q"), *named, "ModuleNotFoundError")
    assert "brevity = 1.0" in out


PLUGINS_AS_A_LIST = "[run]\nplugins = ['p.py']\n"


def reward(name: str) -> str:
    return f"import smolsum\n\n@smolsum.reward\ndef {name}(completions):\n    return [0.0] * len(completions)\n"


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
PRESETS = '    presets=smolsum.TaskPresets(defaults={"sampling": {"max_new_tokens": 16}}),\n'
TAKEN = CAPITALS.replace('name="capitals"', 'name="tldr"')


def criterion(arguments: str) -> str:
    return f"import smolsum\nCRITERIA = [smolsum.Criterion({arguments})]\n"


def function(line: str) -> str:
    """A file whose reward begins with this line."""
    return f"import smolsum\n@smolsum.reward\n{line}\n"


WRONG: list[tuple[str, str, str]] = [
    ("", "--plugin=none.py", "no plugin at"),
    ("", "--task=none.py", "no plugin at"),
    ("", "--plugin=notes.txt", "notes.txt is not a Python file"),
    ("", "--plugin=p,q.py", "has a comma"),
    ("def f(:\n", "--plugin=p.py", "line 1 of p.py:"),
    ("\nimport no_such_module\n", "--plugin=p.py", "line 2: ModuleNotFoundError: No module named 'no_such_"),
    ("x = 1\nx / 0\n", "--plugin=p.py", "line 2: ZeroDivisionError"),
    ("import sys\nsys.exit(3)\n", "--plugin=p.py", "line 2: SystemExit: 3"),
    ("class E(Exception):\n    def __str__(self): raise ValueError\n\nraise E\n", "--plugin=p.py", "line 4: E"),
    ("", "--plugin=p.py", "no function marked with @smolsum.reward, no TASK and no CRITERIA"),
    (TRL, "--plugin=p.py", "hint: --plugin p.py:starts_with_a"),
    (TRL, "--plugin=p.py:start", "p.py has no 'start'"),
    ("fine = 3\n", "--plugin=p.py:fine", "reward 'fine' is not a function"),
    *((reward(name), "--plugin=p.py", f"reward '{name}' has the name of another signal, criterion, metric or column")
      for name in ("meteor", "copied", "text", "tokens", "sample")),
    (reward("f"), "--plugin=p.py --plugin=./p.py:f", "reward 'f' has the name of another signal"),
    ("import smolsum\nsmolsum.reward(name='a-b')(print)\n", "--plugin=p.py", "line 2: AttributeError"),
    ("import smolsum\n@smolsum.reward(rang='x')\ndef f(completions): ...\n", "--plugin=p.py", "line 2: TypeE"),
    (function("class F: ..."), "--plugin=p.py", "no function marked"),
    (function("def f(completions, solution): ..."), "--plugin=p.py --reward=f", "'solution', and the train split"),
    (reward("f"), "--plugin=p.py --reward=g", "unknown signal 'g'"),
    (reward("f"), "--plugin=p.py --set=stages.constrained.rewards.g=1", "unknown signal 'g'"),
    (reward("f"), "--plugin=p.py --set=rewards.on_error=go", "must be one of stop, missing"),
    (reward("f"), "--plugin=p.py --set=rewards.timeout_s=0", "rewards.timeout_s must be above"),
    (reward("f"), "--config=m.toml", "m.toml:2: run.plugins"),
    (reward("f"), "--task=p.py", "--task p.py: the file has no TASK"),
    ("TASK = 3\n", "--plugin=p.py", "p.py: TASK is int"),
    (TAKEN, "--task=./p.py", "the name of task 'tldr' is taken"),
    ("CRITERIA = ['brief']\n", "--plugin=p.py", "p.py: CRITERIA is not a list of criteria"),
    (criterion("'', ()"), "--plugin=p.py", "line 2: criterion '' has no usable"),
    (criterion("'kind', 'Is it?'"), "--plugin=p.py", "its steps are not sent"),
    (criterion("'kind', ()"), "--plugin=p.py", "its steps are not sentences"),
    (criterion("'kind', ('Is it?',), sees=('post',)"), "--plugin=p.py", "a judge cannot see ('post',)"),
    (criterion("'kind', ('Is it?',), threshold=5"), "--plugin=p.py", "the threshold 5"),
    (criterion("'kind', ('Is it?',)") + "CRITERIA *= 2\n", "--plugin=p.py", "'kind' has the name of another"),
    *((criterion(f"'{name}', ('Is it?',)"), "--plugin=p.py", f"'{name}' has the name of another signal, criterion, m")
      for name in ("meteor", "faithfulness")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "flags", "named"), WRONG, ids=[f"{n}" for n in range(len(WRONG))])
def test_ways_to_get_it_wrong(text: str, flags: str, named: str, call: Call) -> None:
    for file, content in (("p.py", text), ("p,q.py", text), ("notes.txt", "x"), ("m.toml", PLUGINS_AS_A_LIST)):
        write(file, content)
    refused = call("train", *flags.split(), "--dry-run")
    assert_refused(refused, named)
    assert refused[2].count("error:") == 1
    assert not Path("runs").exists()


def test_a_task_in_a_file(call: Call, plan: Plan) -> None:
    """It is chosen by its file; its name stands in the settings, and its data are shown. Without presets it trains the
    default model, with one stage that has its signals."""
    write("capitals.py", CAPITALS)
    out = plan("--task=./capitals.py")
    assert 'name = "capitals"' in out
    assert "upper = 1.0" in out
    done(call("data", "./capitals.py", "--preview=1"))
    assert_refused(call("train", "--plugin=./capitals.py", "--task=capital", "--dry-run"), "unknown task 'capital'")
    write("capitals.py", CAPITALS.replace(PRESETS, ""))
    out = plan("--task=./capitals.py")
    assert 'path = "builtin:tiny"' in out
    assert "[stages.capitals.rewards]" in out


def test_the_task_on_the_page_of_plugins_is_true(call: Call, tmp_path: Path) -> None:
    """Tried as it stands there: with --task the file trains; its data, signals and metrics are its own."""
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    (found,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "TASK = " in block)
    assert len(found.splitlines()) <= 40
    path = write("capitals.py", found.replace(" 200", " 8"))
    small = ["--set=stages.capitals.steps=2", "--set=sampling.rollouts=2", "--set=train.validate_every=0"]
    done(call("train", "--task", path, "--name", "toy", "--set=task.letters=3", *small, "--plain"))
    run = tmp_path / "runs" / "toy"
    steps = read_jsonl(run / "metrics.jsonl")
    assert all("rewards/upper/mean" in step for step in steps)
    assert all("length/within_tol" not in step for step in steps)
    assert set(read_summary(run / "eval" / "capitals-test").metrics) == {"upper", "passed", "errors/lower case"}
    done(call("eval", run, "--plugin", path, "--split", "validation", "--plain"))
    refused = call("train", "--task", path, "--set=task.target_tokens=3", "--dry-run")
    assert_refused(refused, "unknown key 'task.target_tokens' of task capitals")


def test_a_run_with_a_plugin(call: Call, tmp_path: Path) -> None:
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

    taken_up = (["train", "--resume=mine"], ["eval", "mine"])
    for unnamed in (*taken_up, ["train", f"--config={run.config}", "--name=other", "--dry-run"]):
        assert_refused(call(*unnamed, "-q"), "brevity.py", "executed only when it is named", f"hint: --plugin {plugin}")
    plugin.unlink()
    copy = "runs/mine/plugins/brevity.py"
    assert_refused(call("train", "--resume=mine", "-q"), f"hint: --plugin {copy}")
    done(call("train", "--resume=mine", f"--plugin={copy}", "-q"))
    write("brevity.py", BREVITY.replace("< 6", "< 7"))
    for command in taken_up:
        assert_refused(call(*command, "--plugin=brevity.py", "-q"), "brevity.py has changed since run mine began")
    plugin.write_bytes(content)
    out, _ = done(call("eval", "mine", "--plugin=brevity.py", "--split=validation", "-q"))
    folder = Path(out.strip())
    assert read_summary(folder).metrics["brevity"] is not None
    assert json.loads((folder / "origin.json").read_text())["task"]["plugin brevity"] == recorded.sha256
    done(call("report", "mine", "--output=report"))
    assert "share of short words" in next(Path("report").rglob("*.html")).read_text()
    done(call("stats", "--paired", "runs/mine/eval/start-test", "runs/mine/eval/quality-test"))


def test_an_exception_loses_nothing(call: Call, tmp_path: Path) -> None:
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
    named = (
        "reward 'flaky' (flaky.py:",
        "sample 0 of prompt",
        "ZeroDivisionError: division by zero (line 12 of flaky.py",
    )
    remedies = (
        "smolsum train --config runs/mine/config.toml --plugin flaky.py --name OTHER",
        "--model runs/mine/checkpoints/step-000002",
        "smolsum train --resume mine --plugin flaky.py",
    )
    code, out, err = call(*train)
    assert_refused((code, "", err), *named, *remedies, error=PluginError)
    assert (out, err.count("error:")) == ("runs/mine\n", 1)
    run = RunPaths(Path("runs/mine"))
    assert (state(run), len(read_jsonl(run.metrics))) == ("failed", 2)
    Path("broken").unlink()
    done(call("train", "--resume=mine", "--plugin=flaky.py", "--quiet"))
    assert (state(run), len(read_jsonl(run.metrics))) == ("finished", 4)
    write("broken", "")
    none = [*arguments(data, Path("runs"), "none", **settings), "--set=rewards.on_error=missing"]
    none += ["--reward=flaky-meteor"]
    code, _, err = call(*none, "--plugin=flaky.py", "--quiet")
    assert_refused(
        (code, "", err), "no value for 8 of 8 completions", "a reward: flaky had no value", error=SmolsumError
    )
    assert state(RunPaths(Path("runs/none"))) == "failed"
    write("flaky.py", Path("flaky.py").read_text().replace("1 / 0", "1 / (len(c) % 2)"))
    again = ["train", "--config=runs/mine/config.toml", "--plugin=flaky.py", "--set=rewards.on_error=missing", "-q"]
    _, err = done(call(*again, "--name=again", "--model=runs/mine/checkpoints/step-000002"))
    assert state(RunPaths(Path("runs/again"))) == "finished"
    nulls = pl.read_ndjson(Path("runs/again/completions/step-000003.jsonl"))["reward"].null_count()
    assert 0 < nulls < 8
    assert f"gave no value for {nulls} of 8 completions" in err


def test_a_reward_with_the_name_of_a_measured_column(call: Call) -> None:
    """Also where the task shows it in no table: it must not replace what is measured."""
    write("own.py", reward("over_budget"))
    refused = call("baseline", "--model=tiny", "--plugin=own.py", "--prompt=50-words", "--set=data.test_rows=1", "-q")
    assert_refused(refused, "reward 'over_budget'", "task tldr measures")


@pytest.mark.slow
def test_a_grid_says_why_it_trains_again(call: Call) -> None:
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
    assert done(call("runs", "--settings"))[0].splitlines()[-1].startswith("plugin of brevity ")
    Path("runs/damaged").mkdir()
    Path("runs/damaged/config.toml").write_text(run.config.read_text())
    done(call("runs", "--settings"))
    shutil.rmtree("runs/damaged")
    both = ["train", "--plugin=brevity.py", "--reward=brevity", "--reward=meteor", "--dry-run"]
    assert "has changed since" not in done(call(*both))[1]
    plugin.write_text(BREVITY.replace("< 6", "< 8"))
    done(call(*both), "is to train: the plugin of brevity has changed since old")


def test_a_resume_from_another_folder_says_where_the_run_began(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    refused = call("train", f"--resume={run.root}", f"--plugin={plugin}", "-q")
    assert_refused(refused, "no data at 'posts'", f"hint: cd {tmp_path}", "data.path = 'posts'")
