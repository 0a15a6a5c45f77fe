"""Document QA: summaries that answer questions which the policy never sees."""

from smolsum.tasks.doc_qa.task import TASK as TASK
