"""The study of 26 runs, made once."""

from pathlib import Path

import pytest
from support.reports import report_of
from support.studies import the_study

from smolsum.results.report.document import Page


@pytest.fixture(scope="session")
def study_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its runs."""
    runs = tmp_path_factory.mktemp("study")
    the_study(runs)
    return runs


@pytest.fixture(scope="session")
def study(study_runs: Path) -> Page:
    return report_of(*sorted(study_runs.iterdir()))
