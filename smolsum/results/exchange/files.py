"""Which files hold the evaluations of runs in each form of another tool."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from smolsum.results.exchange import every_eval_ever, inspect_log
from smolsum.results.exchange.evaluations import exchanged
from smolsum.results.exchange.texts import TextReader
from smolsum.results.report.collect import ReportInputs

Form = Literal["inspect", "every-eval-ever"]


def exchange_files(
    inputs: ReportInputs, folder: Path, form: Form, *, texts: bool, organization: str, warn: Callable[[str], None]
) -> dict[Path, bytes]:
    """Return the files in `folder` that hold the evaluations of runs and those outside of runs, one file each. With
    `texts` logs of inspect_ai have prompts, references, answers and the judge's reasons, which else stay here; `warn`
    gets a sentence on what of them is not here. `organization` is who evaluated, empty if not named.

    Raises SmolsumError where no evaluation is finished or a file is damaged."""
    evaluations = exchanged(inputs)
    if form == "every-eval-ever":
        store = folder / every_eval_ever.FOLDER
        return {
            store / every_eval_ever.record_path(one, organization): every_eval_ever.to_record(one, organization)
            for one in evaluations
        }
    if texts:
        reader = TextReader(inputs.trained, warn)
        evaluations = tuple(replace(one, texts=reader.read(one.result)) for one in evaluations)
    logs = folder / inspect_log.FOLDER
    return {logs / inspect_log.log_name(one): inspect_log.to_inspect(one) for one in evaluations}
