"""Weights & Biases: a run of a project, online, or offline in the folder `wandb` for `wandb sync`.

W&B never takes a step twice: after a resume that goes back, the steps that it has stay as they were first sent. What it
takes offline is not on the disk at once, and lost where its process is killed: so the files of the run are read back.
"""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from smolsum.runs.trackers.tracker import CompletionTable, Level, TrackedIdentity

INIT_S = 60.0
"""Seconds that a server has to answer at the start."""
BLOCK, HEADER = 32768, 7
"""Bytes of a block in a `.wandb` file, and of the header of the file and of each part of a record."""
WHOLE, LAST = 1, 4
"""Kinds of parts that complete a record."""


def open_run(run: TrackedIdentity) -> "WandbRun":
    """Return the W&B run with this id, made or continued."""
    return WandbRun(run)


class WandbRun:
    """A W&B run. Its own process (wandb-core) uploads what it takes, and tries again while the network is away."""

    keeps_first = True

    def __init__(self, run: TrackedIdentity) -> None:
        import wandb

        # this process's output, load and source are not the training's
        quiet = wandb.Settings(
            console="off", silent=True, x_disable_stats=True, disable_code=True, disable_git=True, init_timeout=INIT_S
        )
        self._wandb = wandb
        self._run = wandb.init(
            project=run.project_or("WANDB_PROJECT"), name=run.name, id=run.id, resume="allow", group=run.group,
            tags=list(run.tags), settings=quiet,
        )  # fmt: skip
        self._run.config.update(dict(run.config), allow_val_change=True)
        offline = self._run.offline
        folder = Path(self._run.dir).parent
        files = folder.parent.glob(f"offline-run-*-{run.id}/run-{run.id}.wandb")
        self.held = max(map(_last_step, files), default=0) if offline else max(self._run.step - 1, 0)
        self.url = str(folder) if offline else str(self._run.url)

    def log(self, step: int, values: Mapping[str, float], table: CompletionTable | None) -> None:
        """Take a step with its table."""
        extra = {}
        if table is not None:
            extra["completions"] = self._wandb.Table(
                columns=list(table.columns), data=[list(row) for row in table.rows]
            )
        self._run.log({**values, **extra}, step=step, commit=True)

    def alert(self, title: str, text: str, level: Level, step: int | None) -> None:
        """Raise an alert of the run, which W&B may pass on by mail."""
        levels = self._wandb.AlertLevel
        named = {"info": levels.INFO, "warning": levels.WARN, "error": levels.ERROR}
        self._run.alert(title=title, text=text, level=named[level], wait_duration=0)

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Put the metrics into the run's summary."""
        self._run.summary.update(dict(values))

    def rewind(self, step: int) -> None:
        """Not possible."""

    def flush(self) -> None:
        """Not possible: `held` of the next process says what was lost."""

    def close(self, state: str) -> None:
        """Wait until everything is uploaded, and mark the run as finished or failed."""
        self._run.finish(exit_code=1 if state in ("failed", "STALE", "interrupted") else 0)


def offline_records(file: Path) -> Iterator[Any]:
    """Yield the whole records (wandb's protocol buffers) of a `.wandb` file, which is a log in LevelDB's format. A file
    that was cut off ends with its last whole record."""
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    content, place, record = file.read_bytes(), HEADER, b""
    while place + HEADER <= len(content):
        if BLOCK - place % BLOCK < HEADER:  # the rest of a block that has no room for a part
            place += BLOCK - place % BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", content[place : place + HEADER])
        record, place = record + content[place + HEADER : place + HEADER + size], place + HEADER + size
        if kind in (WHOLE, LAST):
            found = wandb_internal_pb2.Record()
            try:
                found.ParseFromString(record)
            except DecodeError:
                return
            yield found
            record = b""


def _last_step(file: Path) -> int:
    rows = (record.history.item for record in offline_records(file) if record.WhichOneof("record_type") == "history")
    steps = [int(item.value_json) for row in rows for item in row if "_step" in (item.key, *item.nested_key)]
    return max(steps, default=0)
