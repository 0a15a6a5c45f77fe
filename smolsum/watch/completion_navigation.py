"""Moves in the completions browser, as functions from a moment of the view to new options."""

from dataclasses import replace

from smolsum.runs.completion_groups import ordered, sort_keys
from smolsum.runs.records import SampledRollout
from smolsum.watch.before_after import has_example
from smolsum.watch.completion_browser import group_of, row_of, sample_of
from smolsum.watch.keys import MANY
from smolsum.watch.snapshot import Listing, Snapshot, ViewOptions


def rows_of(snapshot: Snapshot) -> int:
    """Return how many rows the browser lists; many while that is not known yet."""
    found, tests = snapshot.found, snapshot.tests
    match snapshot.options.listing:
        case "hits":
            return len(found.order) if found else MANY
        case "time":
            return len(found.spans) if found else MANY
        case "tests":
            return len(tests.order) if tests else MANY
    group = group_of(snapshot)
    return len(group.samples) if group else 0


def moved(snapshot: Snapshot, by: int) -> ViewOptions:
    """Return the options with the bar moved by so many rows."""
    options, last = snapshot.options, max(rows_of(snapshot) - 1, 0)
    if options.listing == "step":
        return replace(options, row=min(max(options.row + by, 0), last), scroll=0)
    place = min(max(row_of(options, last + 1) + by, 0), last)
    return replace(options, hit=place, scroll=0) if options.listing == "hits" else replace(options, bar=place, scroll=0)


def next_one(snapshot: Snapshot, by: int) -> ViewOptions:
    """Return the options with the next hit of a search, or the next row of another listing; without either, with the
    next prompt of the step."""
    options = snapshot.options
    if options.listing != "step":
        return moved(snapshot, by)
    if options.query:
        return replace(options, listing="hits", hit=max(options.hit + by, 0), scroll=0)
    return next_prompt(snapshot, by)


def next_prompt(snapshot: Snapshot, by: int) -> ViewOptions:
    """Return the options with another prompt of the step."""
    group = (snapshot.options.group + by) % max(len(snapshot.groups), 1)
    return replace(snapshot.options, group=group, row=0, scroll=0)


def other_step(snapshot: Snapshot, by: int) -> ViewOptions:
    """Return the options with the completions of another step, after the last one those of the newest as it comes; in a
    list of steps or hits with another row; of the test split with another evaluation."""
    options, run = snapshot.options, snapshot.run
    if options.listing in ("hits", "time"):
        return moved(snapshot, by)
    if options.listing == "tests":
        names = snapshot.tests.names if snapshot.tests else ()
        shown = names.index(snapshot.tests.after.name) if snapshot.tests and snapshot.tests.after.name in names else 0
        return replace(options, later=min(max(shown + by, 0), max(len(names) - 1, 0)), scroll=0)
    step = snapshot.step + by
    return replace(options, step=None if step >= run.step else max(step, run.first_step), row=0, scroll=0)


def next_order(snapshot: Snapshot) -> ViewOptions:
    """Return the options with the next column to sort by."""
    options, group = snapshot.options, group_of(snapshot)
    if options.listing == "hits" and snapshot.found:
        keys = snapshot.found.scan.hits.sort_keys()
    elif options.listing == "tests" and snapshot.tests:
        keys = snapshot.tests.sort_keys
    else:
        keys = sort_keys(group) if group else ["sample"]
    place = keys.index(options.sort) if options.sort in keys else -1
    bar = options.bar if options.listing == "time" else 0
    return replace(options, sort=keys[(place + 1) % len(keys)], row=0, hit=0, bar=bar, scroll=0)


def searching(snapshot: Snapshot, query: str) -> ViewOptions:
    """Return the options with the hits of a search; for the number or id of an example of the test split, with that
    before and after training; without a text, with the rollouts of a step."""
    if query and has_example(snapshot.run, query):
        return replace(snapshot.options, query=query, listing="tests", prompt=query, bar=0, later=-1, scroll=0)
    listing: Listing = "hits" if query else "step"
    return replace(snapshot.options, query=query, listing=listing, hit=0, row=0, scroll=0)


def over_time(snapshot: Snapshot) -> ViewOptions:
    """Return the options with all steps at which the shown prompt was sampled, the newest one first under the bar; or
    back."""
    options = snapshot.options
    if options.listing == "time":
        return back(snapshot)
    prompt = _example(snapshot) if options.listing == "tests" else (sample_of(snapshot) or SampledRollout()).prompt_id
    return replace(options, listing="time", prompt=prompt, bar=-1, scroll=0) if prompt else options


def test_split(snapshot: Snapshot) -> ViewOptions:
    """Return the options with the test split before and after training, or back."""
    options = snapshot.options
    if options.listing == "tests":
        return back(snapshot)
    return replace(options, listing="tests", prompt="", bar=0, later=-1, scroll=0)


def opened(snapshot: Snapshot) -> ViewOptions:
    """Return the options with the step of the row under the bar, and the sample of that row; a hit in an evaluation is
    listed over time."""
    options, group, sample = snapshot.options, group_of(snapshot), sample_of(snapshot)
    if options.listing not in ("hits", "time") or group is None or sample is None:
        return options
    if group.evaluation:
        return options if options.listing == "time" else over_time(snapshot)
    kept = ordered(group, options.sort, snapshot.run.settings, backwards=options.backwards)
    row, place = kept.index(sample), snapshot.groups.index(group)
    return replace(options, listing="step", step=group.step, group=place, row=row, scroll=0)


def back(snapshot: Snapshot) -> ViewOptions:
    """Return the options with what was listed before: after a prompt over time or the test split the hits, if there
    was a search, and then the rollouts of a step."""
    options = snapshot.options
    if options.listing in ("time", "tests") and options.query:
        return replace(options, listing="hits", scroll=0)
    return replace(options, listing="step", query="", scroll=0)


def _example(snapshot: Snapshot) -> str:
    tests = snapshot.tests
    return tests.order[row_of(snapshot.options, len(tests.order))] if tests and tests.order else ""


def copied(snapshot: Snapshot) -> tuple[str, str]:
    """Return what the key for copying takes, in words, and its text; empty for nothing."""
    if snapshot.options.listing == "tests":
        tests, name = snapshot.tests, _example(snapshot)
        return (f"{name} of {tests.after.name}", tests.after.samples[name].text) if tests and name else ("", "")
    sample = sample_of(snapshot)
    return ("the completion", sample.text) if sample else ("", "")
