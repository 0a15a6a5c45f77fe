"""The settings of document QA."""

from dataclasses import dataclass
from typing import Literal, cast

from smolsum.config.fields import Count, Positive, PositiveCount, Seed, Text
from smolsum.config.sections import Config, TaskConfig

RULES = "rules"
"""the reader that needs no model"""


@dataclass(frozen=True)
class DocQaConfig(TaskConfig):
    """What a summary has to be, who reads it, and where the questions are."""

    system_prompt: str = (
        "Summarise the document in at most {max_words} words. Somebody who reads nothing but your summary will be "
        "asked about the document: keep names, numbers, dates, places, reasons and results."
    )
    """System message of every prompt; `{max_words}` stands for the limit. It never shows a question."""
    max_words: PositiveCount = 350
    """Words that a summary may have."""
    reader: Text = RULES
    """Who answers from the summary: `rules`, for questions made from facts, or a model at $SMOLSUM_READER_URL (without
    it, $OPENAI_BASE_URL)."""
    grader: str = ""
    """The model that compares the answers with those expected, at $SMOLSUM_GRADER_URL (without it,
    $OPENAI_BASE_URL); empty: the reader, at its endpoint."""
    concurrency: PositiveCount = 20
    """Questions to reader and grader at a time."""
    deadline_s: Positive = 60.0
    """Seconds that one answer of theirs may take."""
    attempts: PositiveCount = 4
    """Times that a question is asked before its answer counts as missing."""
    wait_s: Positive = 600.0
    """Seconds to wait for a reader that does not answer at all; then the run stops, saved."""
    max_calls: Count = 0
    """Requests to reader and grader together that one attempt at a run may pay for; 0: any number."""
    id_column: Text = "document_id"
    """Column that says to which document a question belongs."""
    document_column: Text = "document_extracted"
    """Column with the document."""
    question_column: Text = "question"
    """Column with a question."""
    answer_column: Text = "answer"
    """Column with its answer."""
    unanswerable: Literal["drop", "keep"] = "drop"
    """What to do with questions that the document does not answer (a fifth of Repliqa's)."""
    validation_documents: PositiveCount = 91
    """Documents to validate on, if the data have one split only."""
    test_documents: PositiveCount = 250
    """Documents to report results on, if the data have one split only; the rest are trained on."""
    split_seed: Seed = 80
    """Seed of that division."""

    @property
    def work(self) -> tuple[str, ...]:
        """How reader and grader are asked, on which no measure depends."""
        return ("concurrency", "deadline_s", "attempts", "wait_s", "max_calls")


def settings(config: Config) -> DocQaConfig:
    """Return the task's own part of a configuration."""
    return cast(DocQaConfig, config.task)
