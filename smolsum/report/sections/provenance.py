"""What a report rests on: its runs, its data and its judge; what was left out; and the limits of what it shows."""

from collections.abc import Sequence

from smolsum.report.collect import LeftOut, ReportInputs
from smolsum.report.document import DASH, Cell, CellSource, Table, empty, number, plain, words
from smolsum.report.results import ConfigurationResult
from smolsum.report.shell_commands import judge_command
from smolsum.runs.evaluation_records import SUMMARY


def provenance_table(inputs: ReportInputs) -> Table:
    """Return Table S3: runs, test split, judge, versions and machines."""
    first = inputs.evaluations[0]
    path = first.folder / SUMMARY
    judge = Cell(inputs.judge) if inputs.judge else empty(judge_command(inputs, first))
    if not inputs.criteria:
        judge = words("the task has no judge")
    rows = [
        ("Runs", words(len(inputs.trained))),
        ("Baselines", words(len(inputs.baselines))),
        ("Models", words(", ".join(inputs.models))),
        ("Test split fingerprint", Cell(str(first.scores.origin.get("data")), source=CellSource(path, "data"))),
        ("Examples", number(first.summary.n, plain(0), CellSource(path, "n"))),
        ("Judge", judge),
    ]
    if matchers := sorted({e.summary.meteor for e in inputs.evaluations if e.summary.meteor}):
        rows.append(("METEOR", words(", ".join(matchers))))
    versions = sorted({str(run.info.versions.get("smolsum")) for run in inputs.trained})
    machines = sorted({str(run.info.machine.get("system")) for run in inputs.trained})
    rows.append(("smolsum", words(", ".join(versions)) if versions else DASH))
    rows.append(("Trained on", words(", ".join(machines)) if machines else DASH))
    return Table("S3", "Provenance", ("What", "Value"), tuple((words(what), value) for what, value in rows))


def left_out_table(left_out: Sequence[LeftOut]) -> Table:
    """Return Table S2: what was given and is not in the report, with the reason."""
    rows = ((words(one.name), words(one.reason), words(one.command) if one.command else DASH) for one in left_out)
    return Table("S2", "Left out of this report", ("Run", "Why", "Command that helps"), tuple(rows))


def limits(inputs: ReportInputs, results: Sequence[ConfigurationResult]) -> list[str]:
    """Return what readers should keep in mind about these runs."""
    found = list(inputs.notices)
    if any(not one.seeds for one in results):
        found.append(
            "A configuration with one seed cannot show how much training varies; its p value is about examples."
        )
    if not inputs.criteria:
        found.append("Training and evaluation measure the same: a reward that can be satisfied by a trick rises too.")
    elif inputs.judge is None:
        found.append("No judge has scored these runs: lengths and overlap say little about quality.")
    else:
        found.append(f"Quality is the opinion of one judge ({inputs.judge}); no human has scored these summaries.")
    if any("exact+stem" in (e.summary.meteor or "") for e in inputs.evaluations):
        found.append("METEOR matched words and stems without WordNet's synonyms.")
    data = {run.config["data"]["path"] for run in inputs.trained}
    found.append(f"One data set ({', '.join(sorted(data)) or 'that of the baselines'}), one split, greedy decoding.")
    return found
