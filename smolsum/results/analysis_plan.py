"""An analysis plan: what will be compared, in which metric, by which test, written before the runs.

The file is TOML with the versions of the plan, the first one first. Each has a SHA-256 over its content, its time and
the hash before it, so that neither what was planned nor its order can be edited unnoticed. It says nothing about when
the file was written in truth: publish the hash, or commit the file, before the first run.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import tomli
import tomli_w
from msgspec import Struct

from smolsum.errors import SmolsumError, UsageError
from smolsum.files import replace, to_json
from smolsum.runs.typed_json import parse
from smolsum.stats.paired import Alternative

Correction = Literal["holm", "bh", "none"]


class PlanVersion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is planned. The first configuration is the one that each of the others is compared with."""

    configurations: dict[str, list[str]]
    """names of runs, by configuration"""
    metrics: list[str]
    alternative: Alternative = "two-sided"
    margin: float | None = None
    """of equivalence, or of non-inferiority where `alternative` is one-sided; None: a difference"""
    matched: bool = False
    cluster: str | None = None
    correction: Correction = "holm"
    """of p over all planned tests"""
    reason: str = ""
    """why an earlier version was changed"""
    created: str = ""
    """ISO 8601 with its offset"""
    hash: str = ""

    @property
    def content(self) -> dict[str, Any]:
        """All that is planned, without time, reason and hash."""
        return {key: value for key, value in self.table.items() if key not in ("created", "reason", "hash")}

    @property
    def table(self) -> dict[str, Any]:
        """The version as TOML has it, which knows no None."""
        return {key: value for key, value in msgspec.to_builtins(self).items() if value not in (None, "")}

    @property
    def runs(self) -> list[str]:
        """The names of all runs."""
        return [run for runs in self.configurations.values() for run in runs]

    @property
    def tests(self) -> int:
        """How many tests are planned."""
        return (len(self.configurations) - 1) * len(self.metrics)

    def with_hash(self, before: str) -> "PlanVersion":
        """Return the version with its hash, which follows on the one before (empty for the first)."""
        hashed = to_json([before, self.created, self.reason, sorted(self.content.items())])
        return msgspec.structs.replace(self, hash=hashlib.sha256(hashed).hexdigest())


class AnalysisPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """The file of a plan."""

    versions: list[PlanVersion]

    @property
    def current(self) -> PlanVersion:
        return self.versions[-1]

    def problems(self, started: Sequence[datetime]) -> list[str]:
        """Return in sentences what makes this less than a plan that was written before its runs, of which these are the
        starts, and stayed as it was; empty for one that did."""
        found, before = [], ""
        for number, version in enumerate(self.versions, start=1):
            if version.with_hash(before).hash != version.hash:
                found.append(f"Version {number} was edited by hand: its hash does not agree with what it says.")
            before = version.hash
        if not started:
            return found
        first = min(started)
        for number, version in enumerate(self.versions, start=1):
            if datetime.fromisoformat(version.created) <= first:
                continue
            what = "written" if number == 1 else f"changed ({', '.join(self.changes(number))})"
            reason = f" Reason: {version.reason}." if version.reason else ""
            found.append(
                f"The plan was {what} on {version.created}, after the first of its runs had begun "
                f"({first.isoformat()}).{reason}"
            )
        return found

    def changes(self, number: int) -> list[str]:
        """Return what version `number` changed, as `metrics: meteor -> composite`."""
        old, new = (self.versions[place].content for place in (number - 2, number - 1))
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        return [f"{key}: {_said(old.get(key))} -> {_said(new.get(key))}" for key in keys]


def _said(value: object) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name} = {', '.join(runs)}" for name, runs in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)


def read_plan(path: Path) -> AnalysisPlan:
    """Return the plan of a file. Raises UsageError if it is missing or damaged; one that was edited is read, and
    `problems` says so."""
    hint = "write one with smolsum plan, before the first run"
    try:
        document = tomli.loads(path.read_text(encoding="utf-8"))
        plan = parse(document, AnalysisPlan, str(path), needs=("versions",), hint=hint)
    except OSError as error:
        raise UsageError(f"no plan at {path}: {error.strerror or error}", hint=hint) from error
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no plan: {error}", hint=hint) from error
    except SmolsumError as error:
        raise UsageError(error.message, hint=error.hint) from error
    if not plan.versions:
        raise UsageError(f"{path} holds no version of a plan", hint=hint)
    for version in plan.versions:
        _check(version)
        try:
            if datetime.fromisoformat(version.created).tzinfo is None:
                raise ValueError("it has no offset")
        except ValueError as error:
            raise UsageError(f"{path} has the time {version.created!r}: {error}", hint=hint) from error
    return plan


def write_plan(path: Path, planned: PlanVersion, *, now: datetime) -> AnalysisPlan:
    """Write a plan, or a further version of the one that is there, and return it. Raises UsageError for a plan without
    a comparison, and for a version that changes nothing or gives no reason."""
    _check(planned)
    versions = read_plan(path).versions if path.exists() else []
    if versions and versions[-1].content == planned.content:
        raise UsageError(f"{path} holds this plan already", hint=f"smolsum report RUNS --plan {path}")
    if versions and not planned.reason:
        raise UsageError(
            f"{path} holds another plan: a change is kept next to it, with its reason",
            hint='--reason "the judge was replaced", or another file',
        )
    if not versions and planned.reason:
        raise UsageError(f"--reason is for a change, and there is no plan at {path} yet", hint="leave it out")
    dated = msgspec.structs.replace(planned, created=now.isoformat(timespec="seconds"))
    plan = AnalysisPlan([*versions, dated.with_hash(versions[-1].hash if versions else "")])
    replace(path, tomli_w.dumps({"versions": [version.table for version in plan.versions]}).encode(), "smolsum plan")
    return plan


def _check(planned: PlanVersion) -> None:
    if len(planned.configurations) < 2 or not all(planned.configurations.values()):
        raise UsageError(
            "a plan compares two configurations or more, each with a run",
            hint="joint=j-s1,j-s2,j-s3 staged=s-s1,s-s2,s-s3, names of runs to come",
        )
    if len(set(planned.runs)) < len(planned.runs):
        repeated = next(run for run in planned.runs if planned.runs.count(run) > 1)
        raise UsageError(f"the run {repeated!r} is planned twice", hint="give each run once")
    if not planned.metrics or len(set(planned.metrics)) < len(planned.metrics):
        raise UsageError("a plan names each of its metrics once", hint="--metric meteor, the fewer the better")
    if planned.margin is not None and not planned.margin > 0:
        raise UsageError(f"a margin of {planned.margin:g} is no margin", hint="--margin 0.02")
    if planned.matched and len({len(runs) for runs in planned.configurations.values()}) > 1:
        raise UsageError("matched configurations have equally many runs", hint="give each as many, in the same order")
