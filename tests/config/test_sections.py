"""The records of settings, and the page that documents them."""

from dataclasses import fields

import make_config_docs
import pytest

from smolsum.config.sections import SECTIONS, StageConfig
from smolsum.tasks import TASKS

RECORDS = [*SECTIONS.values(), StageConfig, *(task.settings for task in TASKS.values())]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_setting_has_a_docstring(record: type) -> None:
    meanings = make_config_docs.docstrings(record)
    assert record.__doc__
    assert [field.name for field in fields(record) if not meanings.get(field.name)] == []


def test_configuration_page_is_up_to_date() -> None:
    """After a change of a record: `python scripts/make_config_docs.py`."""
    assert make_config_docs.PAGE.read_text(encoding="utf-8") == make_config_docs.page()
