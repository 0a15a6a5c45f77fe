"""The run directory: the place of each file of a run, and how runs are made, found and locked.

runs/<name>/
  config.toml  run.json  status.json  metrics.jsonl  events.jsonl  digests.jsonl  run.lock
  completions/step-000400.jsonl  checkpoints/step-000400/  eval/  logs/attempt_1.log  control/  trackers/
runs/latest -> <name>
"""

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from difflib import get_close_matches
from itertools import chain, count
from pathlib import Path

import tomli

from smolsum.config.hub import hub_name
from smolsum.config.presets import Table
from smolsum.config.run_labels import NAMED, added_signals, preset_strategy, reward_of
from smolsum.config.sections import Config
from smolsum.errors import UsageError
from smolsum.files import locked, point, writing

LATEST = "latest"


class _Place:
    """A path in the directory of a run, as an attribute of `RunPaths`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: "RunPaths", _: object = None) -> Path:
        return paths.root / self._name


@dataclass(frozen=True)
class RunPaths:
    """The directory of a run, with a name for every path in it."""

    root: Path
    config = _Place("config.toml")
    """the fully resolved configuration: given to --config it repeats the run"""
    info = _Place("run.json")
    """what the run was made from: arguments, versions, machine, data"""
    status = _Place("status.json")
    """what the run is doing now"""
    metrics = _Place("metrics.jsonl")
    """one line a step"""
    events = _Place("events.jsonl")
    """what happened, with its time, over all attempts"""
    checkpoints = _Place("checkpoints")
    control = _Place("control")
    """requests to pause or stop"""
    lock = _Place("run.lock")
    """locked while a trainer writes the run; has the process id and machine of the trainer"""
    evaluations = _Place("eval")
    digests = _Place("digests.jsonl")
    """of all that the run wrote (`runs/digests.py`)"""
    trackers = _Place("trackers")
    """how far each experiment tracker has the run"""

    @property
    def name(self) -> str:
        """What the user calls the run."""
        return self.root.name

    @property
    def resume_command(self) -> str:
        return " ".join(["smolsum train --resume", self.reference, *self._plugin_flags])

    @property
    def eval_command(self) -> str:
        return " ".join(["smolsum eval", self.reference, *self._plugin_flags])

    @property
    def _plugin_flags(self) -> list[str]:
        """Code of users that the run executes has to be named in each command."""
        return [f"--plugin {shlex.quote(text)}" for text in self.named_plugins]

    def restart_command(self, *plugins: str) -> str:
        """The command for a new run with the same settings, with these plugins or those that the run names."""
        flags = [f"--plugin {shlex.quote(text)}" for text in plugins or self.named_plugins]
        return " ".join(["smolsum train --config", shlex.quote(str(self.config)), *flags, "--name OTHER"])

    @property
    def plugins(self) -> Path:
        """Copies of the users' code that the run executes; missing without any."""
        return self.root / "plugins"

    @property
    def named_plugins(self) -> list[str]:
        """The plugins as the run's settings name them."""
        if not self.plugins.is_dir():
            return []
        with suppress(OSError, ValueError):
            section = tomli.loads(self.config.read_text(encoding="utf-8"))["run"]
            return [text for text in str(section["plugins"]).split(",") if text]
        return []

    @property
    def reference(self) -> str:
        """The run on a command line, quoted for a shell: its name in the usual directory of runs, else its path."""
        usual = self.root.parent == Path(os.environ.get("SMOLSUM_RUNS_DIR") or "runs")
        return shlex.quote(self.name if usual else str(self.root))

    def completions(self, step: int) -> Path:
        """Every rollout of a step, one a line."""
        return self.root / "completions" / f"{step_name(step)}.jsonl"

    def checkpoint(self, step: int) -> Path:
        """Directory of the checkpoint made after a step."""
        return self.checkpoints / step_name(step)

    def evaluation(self, of: int | str) -> Path:
        """Directory of an evaluation, of a step or by name, such as a stage."""
        return self.evaluations / (step_name(of) if isinstance(of, int) else of)

    def stage_evaluation(self, label: str) -> Path:
        """Directory of an evaluation that training makes: of `start`, and after each stage by its name."""
        return self.evaluation(f"{label}-test")

    def log(self, attempt: int) -> Path:
        """Log of an attempt: 1 for the start of the run, one more each time it is resumed."""
        return self.root / "logs" / f"attempt_{attempt}.log"

    def tracker(self, name: str) -> Path:
        """How far an experiment tracker has the run."""
        return self.trackers / f"{name}.json"

    def tracker_log(self, name: str) -> Path:
        """Output of the process that sends the run to an experiment tracker."""
        return self.root / "logs" / f"tracker-{name}.log"

    def discarded(self, attempt: int) -> Path:
        """Metrics lines of an attempt that the next one removed."""
        return self.root / "logs" / f"attempt_{attempt}-discarded.jsonl"


def step_name(step: int) -> str:
    """Return `step-000400` for 400; from a million on the names get longer, so sort by number."""
    return f"step-{step:06d}"


def safe_name(text: str) -> str:
    """Return the last part of a path or hub id, or a text, with only characters that are safe in a file name."""
    hub = hub_name(text)
    if hub is not None and hub.revision:
        text = f"{hub.id}-{hub.revision.replace('/', '-')}"
    last = re.split("[/:]", text.rstrip("/"))[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("._-") or "model"


def planned_name(config: Config, presets: Mapping[str, Table], runs_dir: Path) -> str:
    """Return the configured name, or one made from model, strategy, rewards and time that `runs_dir` does not have.
    `presets` are the strategies of the task."""
    if config.run.name:
        return config.run.name
    rewards = dict.fromkeys(r for stage in config.stages.values() for r in stage.trained_rewards)
    settings = asdict(config)
    added = added_signals(settings, presets)
    quality = [r for r in rewards if r not in added] or list(rewards)[:1]
    strategy = preset_strategy(settings, presets) or "-".join(config.stages)
    what = "-".join(quality) if len(quality) <= NAMED else safe_name(reward_of(settings, presets))
    return derive_name(config.model.path, strategy, what, datetime.now(), runs_dir)


def derive_name(model: str, strategy: str, rewards: str, now: datetime, runs_dir: Path) -> str:
    """Return `<model>-<strategy>-<rewards>-<MMDD-HHMM>`, with -2, -3 … if `runs_dir` has that already."""
    base = f"{safe_name(model)}-{strategy}-{rewards}-{now:%m%d-%H%M}"
    return free_name(base, lambda name: (runs_dir / name).exists())


def free_name(base: str, is_taken: Callable[[str], bool]) -> str:
    """Return the first of `base`, `base-2`, `base-3` … that is not taken."""
    return next(name for name in chain([base], (f"{base}-{n}" for n in count(2))) if not is_taken(name))


def create_run(runs_dir: Path, name: str) -> RunPaths:
    """Make the directory of a new run and point `latest` to it. Raises UsageError if the name is taken."""
    paths = RunPaths(runs_dir / name)
    if name == LATEST:
        raise UsageError(f"a run cannot be called {name!r}: that means the newest", hint="--name OTHER")
    with writing(paths.root, "start again, or --set run.dir=DIR"):
        runs_dir.mkdir(parents=True, exist_ok=True)
        try:
            paths.root.mkdir()
        except FileExistsError as error:
            raise UsageError(
                f"run {name!r} exists already in {runs_dir}", hint=f"{paths.resume_command}, or --name OTHER"
            ) from error
        try:
            for directory in ("completions", "checkpoints", "eval", "logs", "control"):
                (paths.root / directory).mkdir()
            paths.lock.touch()  # makes the directory a run (`last_started`)
            point(runs_dir / LATEST, name)
        except OSError:
            shutil.rmtree(paths.root, ignore_errors=True)  # an empty run would only block its name
            raise
    return paths


def _shortest(path: Path) -> Path:
    """Return a path that exists without `.` and `..` where they are not needed. Where it has no name, or `..` follows a
    link, it is absolute."""
    short = Path(os.path.normpath(path))
    return short if short.name not in ("", "..") and short.exists() and short.samefile(path) else path.resolve()


def open_run(reference: str, runs_dir: Path) -> RunPaths:
    """Return the run with this name or path, or the newest for `latest`. Raises UsageError if it does not exist."""
    path = Path(os.path.expanduser(reference))
    for root in (runs_dir / reference, path):
        if reference and last_started(root) is not None:
            # follow a link once, so that the run has its own name instead of that of the link
            return RunPaths(_shortest(root.parent / os.readlink(root) if root.is_symlink() else root))
    if reference and path.is_dir() and (runs := list_runs(path)):
        hint = f"choose one of its runs: {', '.join(str(run.root) for run in runs[-4:])}"
        raise UsageError(f"{reference!r} is a directory of runs, not a run", hint=hint)
    names = [run.name for run in list_runs(runs_dir)]
    if not names:
        hint = "smolsum train --model tiny makes one; if runs are elsewhere, SMOLSUM_RUNS_DIR=DIR"
    elif close := get_close_matches(reference, names, n=1):
        hint = f"did you mean {close[0]}?"
    else:
        hint = f"choose from {', '.join(names[-8:])}"
    what = f"no run {reference!r} in {runs_dir}"
    if reference and path.is_dir():
        what = f"{reference!r} is not a run: it has neither run.lock nor config.toml"
    raise UsageError(what, hint=hint)


def list_runs(runs_dir: Path) -> list[RunPaths]:
    """Return the runs in `runs_dir` by the time they were last started; none if it does not exist."""
    try:
        roots = [root for root in runs_dir.iterdir() if root.name != LATEST]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot read {runs_dir}: {error.strerror}", hint="SMOLSUM_RUNS_DIR=DIR") from error
    found = sorted((time, root) for root in roots if (time := last_started(root)) is not None)
    return [RunPaths(root) for _, root in found]


def last_attempt(paths: RunPaths) -> int:
    """Return the number of the newest attempt; 0 for a run that was never started."""
    logs = (re.fullmatch(r"attempt_(\d+)\.log", path.name) for path in paths.log(0).parent.glob("attempt_*"))
    return max((int(match[1]) for match in logs if match), default=0)


def acquire(paths: RunPaths) -> AbstractContextManager[None]:
    """Hold the run for this process while the block runs. Raises UsageError if another process trains it."""
    return locked(paths.lock, f"run {paths.name!r} is being trained", paths.resume_command)


@contextmanager
def reading(paths: RunPaths) -> Iterator[None]:
    """Hold the run like `acquire` for a command that changes nothing in it: its lock keeps its time, which is that of
    the run's start. Where it cannot be written, no process can train the run."""
    if not os.access(paths.lock, os.W_OK):
        yield
        return
    then = paths.lock.stat()
    with acquire(paths):
        os.utime(paths.lock, ns=(then.st_atime_ns, then.st_mtime_ns))
        yield


def last_started(root: Path) -> float | None:
    """Return when the run at `root` was last started, in seconds since 1970; None if it is not a run."""
    paths = RunPaths(root)
    for mark in (paths.lock, paths.config):  # a copy made by hand may lack the lock
        with suppress(OSError):  # a directory that may not be read does not count
            return mark.stat().st_mtime
    return None
