"""Runs as experiment trackers have them, read back by the trackers' own packages."""

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smolsum.runs.tracker_packages import offline_records


@dataclass
class Tracked:
    """A tracked run: curves as (step, value) in the order in which they were taken, tables by their step."""

    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    tables: dict[int, str] = field(default_factory=dict)
    """completions, as a text that holds them"""
    alerts: list[str] = field(default_factory=list)
    evaluations: dict[str, float] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    """of all runs in the store"""

    def add(self, name: str, step: int, value: float) -> None:
        """Takes a value as a point of a curve, or of an evaluation."""
        if name.startswith("eval/"):
            self.evaluations[name] = value
        else:
            self.curves.setdefault(name, []).append((step, value))


def environment(name: str, folder: Path) -> dict[str, str]:
    """Variables by which a tracker keeps everything in a folder."""
    return {
        "trackio": {"TRACKIO_DIR": str(folder / "trackio")},
        "wandb": {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_CACHE_DIR": str(folder / "cache")},
        "tensorboard": {},
        "mlflow": {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}", "MLFLOW_ARTIFACT_ROOT": str(folder)},
    }[name]


def read_tracked(name: str, run: Path, folder: Path) -> Tracked:
    """The run as a tracker has it that kept everything in a folder."""
    return {"trackio": _trackio, "wandb": _wandb, "tensorboard": _tensorboard, "mlflow": _mlflow}[name](run, folder)


def _tensorboard(run: Path, _: Path) -> Tracked:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    found = Tracked(ids={str(run)})
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            found.add(tag, event.step, event.value)
    for tag in events.Tags()["tensors"]:
        for event in events.Tensors(tag):
            text = event.tensor_proto.string_val[0].decode()
            if tag == "completions":
                found.tables[event.step] = text
            elif tag == "config":
                cells = [line.strip("|").partition(" | ") for line in text.splitlines()]
                found.config = {key.strip(): value.strip() for key, _, value in cells}
            else:
                found.alerts.append(text)
    return found


def _trackio(run: Path, _: Path) -> Tracked:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    runs = list(trackio.Api().runs("smolsum"))
    (one,) = [each for each in runs if each.name == run.name]
    found = Tracked(config=one.config, ids={each.id for each in runs})
    found.alerts = [f"{alert['level']}: {alert['text']}" for alert in one.alerts()]
    for row in SQLiteStorage.get_logs("smolsum", run.name, run_id=one.id):
        for key, value in row.items():
            if key == "completions":
                found.tables[row["step"]] = json.dumps(value, ensure_ascii=False)
            elif isinstance(value, int | float) and key != "step":
                found.add(key, row["step"], value)
    return found


def _mlflow(run: Path, folder: Path) -> Tracked:
    from mlflow import MlflowClient

    client = MlflowClient(environment("mlflow", folder)["MLFLOW_TRACKING_URI"])
    experiment = client.get_experiment_by_name("smolsum")
    runs = client.search_runs([experiment.experiment_id])
    (one,) = [each for each in runs if each.info.run_name == run.name]
    found = Tracked(config=one.data.params, ids={each.info.run_id for each in runs})
    for key in one.data.metrics:
        for metric in client.get_metric_history(one.info.run_id, key):
            found.add(key, metric.step, metric.value)
    place = Path(one.info.artifact_uri.removeprefix("file://"))
    for file in sorted(place.glob("completions/step-*.json")):
        found.tables[int(file.stem.removeprefix("step-"))] = json.dumps(
            json.loads(file.read_text()), ensure_ascii=False
        )
    with suppress(FileNotFoundError):
        alerts = json.loads((place / "alerts.json").read_text())
        rows = [dict(zip(alerts["columns"], row, strict=True)) for row in alerts["data"]]
        found.alerts = [f"{row['level']}: {row['text']}" for row in rows]
    return found


def _wandb(run: Path, folder: Path) -> Tracked:
    found, of_table = Tracked(), [f"completions/{key}" for key in ("_", "size", "ncols", "nrows")]
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in offline_records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run" and record.run.display_name == run.name:
                found.ids.add(record.run.run_id)
            for item in record.config.update if kind == "config" else ():
                found.config[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
            if kind == "alert":
                found.alerts.append(f"{record.alert.level.lower().replace('warn', 'warning')}: {record.alert.text}")
            for item in record.summary.update if kind == "summary" else ():
                key = "/".join(item.nested_key) or item.key
                if key.startswith("eval/"):
                    found.evaluations[key] = json.loads(item.value_json)
            if kind == "history":
                row = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                if "completions/path" in row:
                    file = path.parent / "files" / row["completions/path"]
                    found.tables[row["_step"]] = json.dumps(json.loads(file.read_text()), ensure_ascii=False)
                for key, value in row.items():
                    if isinstance(value, int | float) and not key.startswith(("_", *of_table)):
                        found.add(key, row["_step"], value)
    return found
