"""Completions by a model behind an OpenAI-compatible endpoint, for the same prompts as a policy of our own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smolsum.asking.attempts import Budget
from smolsum.asking.endpoint import Endpoint
from smolsum.asking.panel import Call, Panel
from smolsum.config import Config
from smolsum.errors import SmolsumError
from smolsum.evaluate.generate import in_batches
from smolsum.policy.load import Policy
from smolsum.rollout.records import Prompt, Rollout, RolloutGroup

WAIT_S = 60.0
"""that an endpoint may be silent"""


@dataclass(frozen=True)
class Behind:
    """A model behind an endpoint that completes prompts: what each may cost, and how many are asked at a time."""

    endpoint: Endpoint
    budget: Budget
    concurrency: int


def complete_behind(
    model: Behind, tokenizing: Policy, missing: Sequence[Prompt], config: Config
) -> Iterator[list[RolloutGroup]]:
    """Yields the prompts with a completion each, a batch at a time, at the model's own temperature. Lengths are in the
    tokens of `tokenizing`.

    What failed for good is no completion: SmolsumError at the end, and errors as of `Panel.ask`.
    """
    panel = Panel(model.endpoint, budget=model.budget, concurrency=model.concurrency, wait_s=WAIT_S)
    failed = 0
    for chosen in in_batches(missing, config):
        texts = panel.ask([_call(prompt) for prompt in chosen])
        failed += texts.count(None)
        yield [_group(p, t, model.endpoint, tokenizing) for p, t in zip(chosen, texts, strict=True) if t is not None]
    if failed:
        raise SmolsumError(
            f"{model.endpoint.model} gave no completion for {failed} of {len(missing)} prompts",
            hint="the same command asks for these again",
        )


def _call(prompt: Prompt) -> Call:
    system = "\n".join(m["content"] for m in prompt.messages if m["role"] == "system")
    return Call(prompt.source, None, _text, system)


def _text(found: Mapping[str, Any]) -> str:
    return str(found["text"])


def _group(prompt: Prompt, text: str, endpoint: Endpoint, tokenizing: Policy) -> RolloutGroup:
    ids = tuple(tokenizing.tokenizer.encode(text, add_special_tokens=False))
    ended = (*ids, min(tokenizing.eos_ids))
    return RolloutGroup(prompt, (Rollout(ended, (), "stop", 0, endpoint.model, 0, text),))
