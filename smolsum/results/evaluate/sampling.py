"""Completions of a split: by the policy here, by workers, which first get and confirm its weights, or by a model behind
an OpenAI-compatible endpoint."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import itemgetter

from smolsum import console
from smolsum.config.sections import Config
from smolsum.errors import SmolsumError
from smolsum.llm.batch import BatchClient
from smolsum.llm.client import Call
from smolsum.llm.endpoints import POLICY, Endpoint, find_endpoint
from smolsum.llm.request_policy import RequestPolicy
from smolsum.policy.load import Policy
from smolsum.policy.sampling import rollout_seed
from smolsum.rollout.remote_source import SubmittedGroups, WorkerSampler
from smolsum.rollout.sampling_count import SamplingCounter
from smolsum.rollout.source import sample_seeded
from smolsum.types import Prompt, Rollout, RolloutGroup, SamplingProgress, unheard

AHEAD = 2
"""batches under way for each worker: enough that none waits, and few to lose if this process is killed"""
SHOWN_EVENTS = ("worker_down", "workers_lost", "worker_resynced")
"""worth a warning during an evaluation"""
WAIT_S = 60.0
"""that an API may be silent"""


@dataclass(frozen=True)
class DecodingSettings:
    """How completions are drawn: greedy at temperature 0, else with seeds that follow from `seed`, and perhaps several
    for each prompt."""

    temperature: float = 0.0
    seed: int = 0
    samples: int = 1

    @property
    def name(self) -> str:
        """`greedy`, or all that is needed to draw the same completions."""
        several = f", {self.samples} samples" if self.samples > 1 else ""
        return f"temperature {self.temperature:g}, seed {self.seed}{several}" if self.temperature else "greedy"


GREEDY = DecodingSettings()


@dataclass(frozen=True)
class ApiModel:
    """A model behind an endpoint that completes prompts."""

    endpoint: Endpoint
    requests: RequestPolicy


def find_api(name: str, environ: Mapping[str, str], attempts: int, deadline_s: float, concurrency: int) -> ApiModel:
    """Return the model that `baseline --api` names. Raises UsageError without a key or URL for it."""
    return ApiModel(find_endpoint(name, environ, POLICY), RequestPolicy(attempts, deadline_s, concurrency=concurrency))


def greedy(
    policy: Policy, prompts: Sequence[Prompt], config: Config, counter: SamplingCounter, *, version: int
) -> list[RolloutGroup]:
    """Return one greedy completion for each prompt, in the prompts' order, and count them."""
    groups = dict[str, RolloutGroup]()
    counter.begin()
    for batch in complete(policy, prompts, config, counter.within, version=version):
        counter.add(batch)
        groups |= {g.prompt.id: g for g in batch}
    return [groups[prompt.id] for prompt in prompts]


def complete(
    policy: Policy,
    prompts: Sequence[Prompt],
    config: Config,
    report: Callable[[SamplingProgress], None] = unheard,
    *,
    version: int,
    decoding: DecodingSettings = GREEDY,
) -> Iterator[list[RolloutGroup]]:
    """Yield the prompts with their completions, in the batches of `in_batches`; `report` is called within a batch."""
    for chosen in in_batches(prompts, config, decoding.samples):
        seeds = [completion_seeds(decoding, prompt) for prompt in chosen]
        limit = config.sampling.max_new_tokens
        yield sample_seeded(
            policy, chosen, seeds, decoding.temperature, max_new_tokens=limit, version=version, report=report
        )


def in_batches(prompts: Sequence[Prompt], config: Config, samples: int = 1) -> Iterator[Sequence[Prompt]]:
    """Yield prompts for `train.eval_batch` completions at a time, the longest first, so that memory peaks early."""
    order = sorted(prompts, key=lambda prompt: -len(prompt.token_ids))
    size = max(1, config.train.eval_batch // samples)
    for start in range(0, len(order), size):
        yield order[start : start + size]


def completion_seeds(decoding: DecodingSettings, prompt: Prompt) -> list[int]:
    """Return the seeds of a prompt's completions, which follow from the seed of `decoding` and the prompt's id alone,
    whatever else is in the batch; more samples keep the first. Zeros at temperature 0."""
    if not decoding.temperature:
        return [0] * decoding.samples
    more = [rollout_seed(decoding.seed, "evaluation", prompt.id, n) for n in range(1, decoding.samples)]
    return [rollout_seed(decoding.seed, "evaluation", prompt.id), *more]


def complete_by_workers(
    policy: Policy,
    prompts: Sequence[Prompt],
    config: Config,
    report: Callable[[SamplingProgress], None] = unheard,
    *,
    version: int,
    decoding: DecodingSettings = GREEDY,
) -> Iterator[list[RolloutGroup]]:
    """As `complete`, by the workers of `workers.urls`. Raises WorkerError after `workers.wait_s` seconds without a
    worker, and what `WorkerSampler` raises."""
    workers = WorkerSampler(
        policy, prompts, config.workers, max_new_tokens=config.sampling.max_new_tokens, on_event=_warn
    )
    with closing(workers):
        workers.publish(version)
        under_way: deque[SubmittedGroups] = deque()
        for batch in in_batches(prompts, config, decoding.samples):
            if len(under_way) == AHEAD * len(workers.pool.workers):
                yield workers.collect(under_way.popleft(), report)
            seeds = [completion_seeds(decoding, prompt) for prompt in batch]
            under_way.append(workers.submit(batch, seeds, decoding.temperature, least_version=version))
        while under_way:
            yield workers.collect(under_way.popleft(), report)


def _warn(kind: str, message: str, *, hint: str | None, worker: str | None) -> None:
    if kind in SHOWN_EVENTS:
        console.warn(f"{message}; {hint}" if hint else message)


def complete_by_api(
    model: ApiModel, tokenizing: Policy, missing: Sequence[Prompt], config: Config
) -> Iterator[list[RolloutGroup]]:
    """As `complete`, with one completion for each prompt at the model's own temperature; token ids are those of
    `tokenizing`. Raises SmolsumError at the end if any failed for good, and what `BatchClient.ask` raises."""
    client = BatchClient(model.endpoint, model.requests, wait_s=WAIT_S, fresh=config.train.fresh_evaluations)
    failed = 0
    for chosen in in_batches(missing, config):
        texts = client.ask([_call(prompt) for prompt in chosen])
        failed += texts.count(None)
        yield [_group(p, t, model.endpoint, tokenizing) for p, t in zip(chosen, texts, strict=True) if t is not None]
    if failed:
        raise SmolsumError(
            f"{model.endpoint.model} gave no completion for {failed} of {len(missing)} prompts",
            hint="the same command asks for these again",
        )


def _call(prompt: Prompt) -> Call:
    """Return the question that has all messages of the prompt, also what its last one asks for."""
    # without `sampling.max_new_tokens`: an API completes at its own length, as at its own temperature
    *before, last = prompt.messages
    system = "\n".join(m["content"] for m in before if m["role"] == "system")
    earlier = tuple(m for m in before if m["role"] != "system")
    return Call(last["content"], None, itemgetter("text"), system, earlier)


def _group(prompt: Prompt, text: str, endpoint: Endpoint, tokenizing: Policy) -> RolloutGroup:
    # an API returns no token ids: these are ours, with an end of sequence, so that `Rollout.length` counts the text
    ids = tuple(tokenizing.tokenizer.encode(text, add_special_tokens=False))
    ended = (*ids, min(tokenizing.eos_ids))
    return RolloutGroup(prompt, (Rollout(ended, (), "stop", 0, endpoint.model, 0, text),))
