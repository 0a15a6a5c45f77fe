"""Checks the runs of a grid before any of them begins: data, references, measures and memory, as the dry run of one run
does. What runs share is checked once; no weight is read."""

from collections.abc import Sequence
from dataclasses import asdict

from smolsum.cli.grid import Planned, Previews
from smolsum.config.sections import Config
from smolsum.config.stage_steps import needs_data
from smolsum.errors import SmolsumError, UnreachableError
from smolsum.files import digest
from smolsum.policy.load import is_here
from smolsum.tasks.data import check_references
from smolsum.tasks.data_files import SPLITS
from smolsum.training.setup import forecast

_SHOWN_NAMES = 3


def check_plan(planned: Sequence[Planned], previews: Previews) -> None:
    """Raise an error with a line for each distinct problem of the runs that are not done. Data on a hub that does not
    answer, and models that are not on this machine, are checked when their run begins."""
    forecasts: dict[str, SmolsumError | None] = {}
    problems: dict[str, list[str]] = {}
    errors: dict[str, SmolsumError] = {}
    waiting = [one for one in planned if one.state != "done"]
    for one in waiting:
        try:
            _check(one.config, previews, forecasts)
        except UnreachableError:
            continue
        except SmolsumError as error:
            problems.setdefault(error.message, []).append(one.name)
            errors.setdefault(error.message, error)
    if not problems:
        return
    first = next(iter(errors.values()))
    hints = list(dict.fromkeys(error.hint for error in errors.values()))
    lines = []
    for message, names in problems.items():
        hint = errors[message].hint
        lines.append(f"{_listed(names)}: {message}" + (f" ({hint})" if hint and len(hints) > 1 else ""))
    count = sum(map(len, problems.values()))
    summary = f"{count} of {len(waiting)} runs to train cannot be trained"
    parts = [first.hint if len(hints) == 1 else "each line ends with its remedy"]
    if count < len(waiting):
        parts.append("without --dry-run the other runs are trained")
    raise type(first)("\n  ".join([summary, *lines]), hint="; ".join(filter(None, parts)) or None) from first


def _check(config: Config, previews: Previews, forecasts: dict[str, SmolsumError | None]) -> None:
    """Raise what is wrong with a run. `forecasts` has the problems of the memory that is already known, None for
    none."""
    if not is_here(config.model.path):
        if needs_data(config):
            previews.split(config, "train")
        return
    splits = {name: previews.split(config, name) for name in SPLITS}
    check_references(splits, {name: stage.used_signals for name, stage in config.stages.items()})
    settings = asdict(config)
    del settings["run"], settings["stages"]
    key = digest([settings, any(stage.beta > 0 for stage in config.stages.values())])  # a reference takes memory
    if key not in forecasts:
        try:
            forecast(config, splits)
            forecasts[key] = None
        except SmolsumError as error:
            forecasts[key] = error
    if (problem := forecasts[key]) is not None:
        raise problem


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
