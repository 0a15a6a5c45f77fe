"""Documents and rollouts for tests."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from smolsum.config.sections import Config
from smolsum.tasks.data import Example
from smolsum.tasks.doc_qa.settings import DocQaConfig
from smolsum.types import Prompt, Rollout, RolloutGroup


def config(**task: Any) -> Config:
    """Built-in data, read by rules unless a test sets another reader."""
    return Config(task=DocQaConfig(**({"name": "doc-qa", "max_words": 50} | task)))


def with_data(made: Config, **data: Any) -> Config:
    """The same with other data."""
    return replace(made, data=replace(made.data, **data))


def group(example: Example, texts: Sequence[str]) -> RolloutGroup:
    """The rollouts of one document, by their texts."""
    messages = ({"role": "user", "content": example.source},)
    prompt = Prompt(example.id, messages, (1,), example.references, example.metadata)
    return RolloutGroup(prompt, tuple(Rollout((1, 0), (0.0, 0.0), "stop", 0, "local", 0, text) for text in texts))
