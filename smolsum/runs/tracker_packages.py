"""What each experiment tracker does with a run, by its own package, which is imported where a run is opened and nowhere
else.

After a resume that goes back, TensorBoard forgets the steps that were discarded; the others cannot remove a step, and
keep what they got first.
"""

import os
import re
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from smolsum.config.fields import TRACKERS
from smolsum.config.presets import leaves
from smolsum.errors import SmolsumError, UnreachableError, UsageError, nearest
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import TrackedRun

MARKER = "learning_rate"
"""A metric that every step has, and no evaluation."""
HEAD, TAIL = 120, 100
"""Characters quoted from the beginning and the end of a library's error, which may have the reason last."""
Level = Literal["info", "warning", "error"]
Table = Sequence[Sequence[str | float | None]]
"""Lines of cells, the first with the names of the columns; empty for no table."""


class Tracker:
    """A run in a tracker, made or continued. Any call may raise whatever the tracker's package raises."""

    url: str
    """where to look at the run"""
    held: int | None
    """the last step that the tracker has; None where it cannot say"""
    keeps_first = True
    """whether a step that was sent stays, so that it cannot be sent again with other values"""

    def __init__(self, paths: RunPaths, record: TrackedRun, config: dict[str, Any], tags: list[str]) -> None:
        """`config` has the tables of config.toml, and under `made_from` the facts of run.json."""

    def log(self, step: int, values: Mapping[str, float], completions: Table = ()) -> None:
        """Take the metrics of a step, which is above all steps before, with completions where there are some."""

    def alert(self, title: str, text: str, level: Level, step: int | None) -> None:
        """Take something that the user should know."""

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of an evaluation of this step's weights; a name that was there gets the new value."""
        self.log(step, values)

    def rewind(self, step: int) -> None:
        """Forget everything after a step. Only for trackers that do not keep the first value."""

    def flush(self) -> None:
        """Return once what was sent survives the end of this process, where the tracker can promise that."""

    def close(self, state: str) -> None:
        """End the connection once everything is sent; `state` is the run's (`smolsum.runs.state`)."""


class TensorboardRun(Tracker):
    """Event files in the folder `tensorboard` of the run directory, so that `tensorboard --logdir runs` shows each run
    by its name. Each process begins one; they hold values in single precision."""

    keeps_first = False

    def __init__(self, paths: RunPaths, record: TrackedRun, config: dict[str, Any], tags: list[str]) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._protocol, self._event, self._text = summary_pb2.Summary, event_pb2, text_pb
        folder = paths.root.absolute() / "tensorboard"
        self.url = f"tensorboard --logdir {folder.parent.parent}"
        # readers take the files by name, which begins with the second that they were made in
        while any(folder.glob(f"events.out.tfevents.{int(time.time())}.*")):
            time.sleep(0.05)
        self.held = None if any(folder.glob("events.out.tfevents.*")) else 0
        self._writer = EventFileWriter(str(folder), max_queue_size=1000)
        self.rewind(0 if self.held == 0 else record.step)
        if self.held == 0:
            settings = [[key, str(value)] for key, value in sorted(leaves(config).items())]
            self._add(0, self._text("config", _markdown([["setting", "value"], *settings])))

    def log(self, step: int, values: Mapping[str, float], completions: Table = ()) -> None:
        self._add(step, self._protocol(value=[{"tag": tag, "simple_value": value} for tag, value in values.items()]))
        if completions:
            self._add(step, self._text("completions", _markdown(completions)))

    def alert(self, title: str, text: str, level: Level, step: int | None) -> None:
        self._add(step or 0, self._text(f"alerts/{title}", f"{level}: {text}"))

    def rewind(self, step: int) -> None:
        """Write a restart, at which readers drop all later steps."""
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step + 1, session_log=start))

    def flush(self) -> None:
        self._writer.flush()

    def close(self, state: str) -> None:
        self._writer.close()

    def _add(self, step: int, summary: Any) -> None:
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, summary=summary))


class MlflowRun(Tracker):
    """A run of an experiment at `MLFLOW_TRACKING_URI`, by default the database mlflow.db in this folder."""

    def __init__(self, paths: RunPaths, record: TrackedRun, config: dict[str, Any], tags: list[str]) -> None:
        # MLflow's own tries would take minutes where the user does not say so, and are repeated here
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        from mlflow import MlflowClient, get_tracking_uri, set_experiment
        from mlflow.entities import Metric, Param

        self._metric, self._client, self._waiting = Metric, MlflowClient(), list[Any]()
        project = _project(record, "MLFLOW_EXPERIMENT_NAME")
        number = set_experiment(project).experiment_id
        found = self._client.search_runs([number], filter_string=f"tags.`smolsum.run` = '{record.id}'", max_results=1)
        if found:
            self._id, known = found[0].info.run_id, found[0].data.params
            self._client.update_run(self._id, status="RUNNING")
            self.held = max((one.step for one in self._client.get_metric_history(self._id, MARKER)), default=0)
        else:
            named = {"smolsum.run": record.id, "group": _group(paths), "mlflow.source.name": "smolsum"}
            made = self._client.create_run(number, run_name=paths.name, tags={**named, **dict.fromkeys(tags, "true")})
            self._id, known, self.held = made.info.run_id, {}, 0
        # a parameter never changes: those that a resumed run has differently are in the file
        # 6000 characters and 100 parameters at a time are the most that MLflow takes
        new = [Param(key, str(value)[:6000]) for key, value in leaves(config).items() if key not in known]
        for first in range(0, len(new), 100):
            self._client.log_batch(self._id, params=new[first : first + 100])
        self._client.log_dict(self._id, config, "config.json")
        self.url = without_secrets(f"{get_tracking_uri()}, experiment {project}, run {self._id}")

    def log(self, step: int, values: Mapping[str, float], completions: Table = ()) -> None:
        if len(self._waiting) + len(values) > 1000:  # the most that MLflow takes at once; a step stays whole
            self.flush()
        now = int(time.time() * 1000)
        self._waiting += [self._metric(name, value, now, step) for name, value in values.items()]
        if completions:
            self._add(completions, f"completions/step-{step:06d}.json")

    def alert(self, title: str, text: str, level: Level, step: int | None) -> None:
        """Add a row to a file, as MLflow has no alerts."""
        self._add([["level", "step", "title", "text"], [level, step, title, text]], "alerts.json")

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._client.log_batch(self._id, metrics=waiting)

    def close(self, state: str) -> None:
        self.flush()
        states = {"finished": "FINISHED", "failed": "FAILED", "STALE": "FAILED", "interrupted": "KILLED"}
        if state in states:
            self._client.set_terminated(self._id, states[state])

    def _add(self, table: Table, file: str) -> None:
        columns = {str(name): list(cells) for name, *cells in zip(*table, strict=True)}
        self._client.log_table(self._id, columns, artifact_file=file)


class TrackioRun(Tracker):
    """A run in Trackio's local database (`TRACKIO_DIR`), on a server (`TRACKIO_SERVER_URL`) or in a Space
    (`TRACKIO_SPACE_ID`). A thread of Trackio writes or uploads it, and only prints what goes wrong, so a local run is
    read back."""

    def __init__(self, paths: RunPaths, record: TrackedRun, config: dict[str, Any], tags: list[str]) -> None:
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        self._trackio, self._storage = trackio, SQLiteStorage
        project = _project(record, "TRACKIO_PROJECT")
        # Trackio resumes by name, of which it takes the newest run: only the id says which run is meant
        self._run = trackio.init(
            project, name=paths.name, group=_group(paths), config={**config, "tags": tags}, embed=False,
            auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip
        self._run.id = record.id
        self._place = {"project": project, "run": paths.name, "run_id": record.id}
        server = trackio.context_vars.current_server.get()
        self.url = f"project {project} in {server or trackio.utils.TRACKIO_DIR}"
        self.held, self._local = None, server is None
        if self._local:
            steps = SQLiteStorage.get_metric_values(metric_name=MARKER, **self._place)
            self.held = max((int(row["step"]) for row in steps), default=0)
            self._logged = SQLiteStorage.get_log_count(**self._place)

    def log(self, step: int, values: Mapping[str, float], completions: Table = ()) -> None:
        table = {"completions": _frame(self._trackio, completions)} if completions else {}
        self._run.log({**values, **table}, step=step)
        if self._local:
            self._logged += 1

    def alert(self, title: str, text: str, level: Level, step: int | None) -> None:
        self._run.alert(title=title, text=text, level=_level(self._trackio, level))

    def flush(self) -> None:
        """Wait for the thread, which writes every half second. Raises UnreachableError where it does not."""
        until = time.monotonic() + 20
        while self._local and self._storage.get_log_count(**self._place) < self._logged:
            if time.monotonic() > until:
                raise UnreachableError(f"trackio: {self.url} does not take what is logged")
            time.sleep(0.1)

    def close(self, state: str) -> None:
        self._trackio.finish()


class WandbRun(Tracker):
    """A W&B run, online, or offline in the folder `wandb` for `wandb sync`. A process of W&B uploads what it takes, and
    tries again while the network is away."""

    def __init__(self, paths: RunPaths, record: TrackedRun, config: dict[str, Any], tags: list[str]) -> None:
        import wandb

        # this process's output, load and source are not the training's; a server has a minute to answer
        quiet = wandb.Settings(
            console="off", silent=True, x_disable_stats=True, disable_code=True, disable_git=True, init_timeout=60.0
        )
        self._wandb = wandb
        self._run = wandb.init(
            project=_project(record, "WANDB_PROJECT"), name=paths.name, id=record.id, resume="allow",
            group=_group(paths), tags=tags, settings=quiet,
        )  # fmt: skip
        self._run.config.update(config, allow_val_change=True)
        folder = Path(self._run.dir).parent
        # W&B counts the step that comes next
        self.url, self.held = str(self._run.url), max(self._run.step - 1, 0)
        if self._run.offline:
            files = folder.parent.glob(f"offline-run-*-{record.id}/run-{record.id}.wandb")
            self.url, self.held = str(folder), max(map(_last_step, files), default=0)

    def log(self, step: int, values: Mapping[str, float], completions: Table = ()) -> None:
        table = {"completions": _frame(self._wandb, completions)} if completions else {}
        self._run.log({**values, **table}, step=step, commit=True)

    def alert(self, title: str, text: str, level: Level, step: int | None) -> None:
        """Raise an alert of the run, which W&B may pass on by mail."""
        # without waiting, or W&B drops a second alert of the same title within a minute
        self._run.alert(title=title, text=text, level=_level(self._wandb, level), wait_duration=0)

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        self._run.summary.update(dict(values))

    def close(self, state: str) -> None:
        self._run.finish(exit_code=1 if state in ("failed", "STALE", "interrupted") else 0)


def offline_records(file: Path) -> Iterator[Any]:
    """Yield the whole records (wandb's protocol buffers) of a `.wandb` file, which is a log in LevelDB's format.

    What W&B takes offline is not on the disk at once, and lost where its process is killed. W&B cannot read these files
    any more except to upload them, so we do: else a killed process would cost steps, or send some twice.
    """
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    block, header = 32768, 7  # bytes; the file begins with as many as a header has
    content, place, record = file.read_bytes(), header, b""
    while place + header <= len(content):
        if block - place % block < header:  # the rest of a block that has no room for a part
            place += block - place % block
            continue
        _, size, kind = struct.unpack("<IHB", content[place : place + header])
        record, place = record + content[place + header : place + header + size], place + header + size
        if kind in (1, 4):  # a whole record, or the last part of one
            found = wandb_internal_pb2.Record()
            try:
                found.ParseFromString(record)
            except DecodeError:  # the file was cut off
                return
            yield found
            record = b""


def _last_step(file: Path) -> int:
    rows = (record.history.item for record in offline_records(file) if record.WhichOneof("record_type") == "history")
    steps = [int(item.value_json) for row in rows for item in row if "_step" in (item.key, *item.nested_key)]
    return max(steps, default=0)


def _frame(package: Any, table: Table) -> Any:
    """A table of W&B, or of Trackio, which has W&B's names."""
    return package.Table(columns=list(table[0]), data=[list(row) for row in table[1:]])


def _level(package: Any, level: Level) -> Any:
    levels = package.AlertLevel
    return {"info": levels.INFO, "warning": levels.WARN, "error": levels.ERROR}[level]


def _markdown(table: Table) -> str:
    """Return a table, whose cells take one line each."""
    head, *rows = table
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in (head, ["---"] * len(head), *rows))


def _cell(value: object) -> str:
    shown = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(shown.split()).replace("|", "\\|")


def _project(record: TrackedRun, variable: str) -> str:
    """The project that the user chose; otherwise that of the tracker's environment."""
    return record.project or os.environ.get(variable) or "smolsum"


def _group(paths: RunPaths) -> str:
    """The folder of the runs, so that those of a grid are together."""
    return paths.root.absolute().parent.name


def check_tracker(name: str, otherwise: str = "") -> None:
    """Raise UsageError for a name that is no tracker, and for a tracker whose package is missing, with another hint
    for that. Imports nothing."""
    if name not in TRACKERS:
        raise UsageError(f"unknown tracker {name!r}", hint=nearest(name, TRACKERS))
    if not is_installed(name):
        raise UsageError(
            f"--track {name} needs the package {name}, which is not installed",
            hint=f"uv sync --extra {name}, or pip install {name}{otherwise}",
        )


def is_installed(name: str) -> bool:
    """Whether the package of a tracker can be found."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def open_tracker(name: str, paths: RunPaths, record: TrackedRun, config: dict[str, Any], tags: list[str]) -> Tracker:
    """Return the tracked run, made or continued."""
    kinds = {"trackio": TrackioRun, "wandb": WandbRun, "tensorboard": TensorboardRun, "mlflow": MlflowRun}
    return kinds[name](paths, record, config, tags)


@contextmanager
def speaking_to(name: str) -> Iterator[None]:
    """Print to stderr what a tracker's package prints in the block, and turn all that it raises into UnreachableError
    with one line of it."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (SmolsumError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a package may even exit where it is imported
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        said = without_secrets(lines[0])
        shown = said if len(said) <= HEAD + TAIL else f"{said[:HEAD]} … {said[-TAIL:]}"
        hint = "wandb login or WANDB_API_KEY=…; WANDB_MODE=offline needs neither key nor server"
        raise UnreachableError(f"{name}: {shown}", hint=hint if name == "wandb" else None) from error


def without_secrets(text: str) -> str:
    """Return a text without the passwords and tokens of its URLs: it may be written into the run."""
    text = re.sub(r"(?<=://)[^/@\s]+@", "", text)
    return re.sub(r"(?i)\b([\w-]*(?:token|key|password|secret))=[^&\s]+", r"\1=…", text)
