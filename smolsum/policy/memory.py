"""The peak memory of an update, estimated before anything is loaded, and the chunking that keeps it within a budget.

Counts arrays: weights, what the optimizer and the KL term keep, and what forward and backward hold for the longest
prompt and completion. Does not count the Python process, about 0.4 GB.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import mlx.nn as nn
from mlx.utils import tree_flatten

from smolsum.config.sections import Config
from smolsum.errors import MachineError
from smolsum.policy.cpu.streams import streams
from smolsum.policy.group_gradient import WHOLE, Chunking, can_checkpoint
from smolsum.policy.logprobs import CHUNK_LOGITS, can_share_prefix

GB = 1e9
ACTIVATIONS = 2.5
"""float32 values held for backward, for each output of a layer's matrices"""
SCORES = 0.9
"""for each attention score"""
LOGITS = 3.2
"""for each logit"""


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a model that memory depends on."""

    parameters: int
    trained: int
    largest: int
    """values of the largest trained tensor"""
    weight_bytes: int
    itemsize: int
    """bytes of a trained value"""
    layers: int
    features: int
    """outputs of a layer's matrices for a token, in the mean over layers"""
    width: int
    heads: int
    vocabulary: int
    shares: bool
    """whether a prompt's completions can share what its layers remember"""
    recomputes: bool
    """whether its layers can be checkpointed"""


@dataclass(frozen=True)
class MaxLengths:
    """Tokens of the longest prompt and of the longest completion of any update."""

    prompt: int
    completion: int


def shape_of(model: nn.Module, config: Mapping[str, Any]) -> ModelShape:
    """Return the shape of a model, whose weights need not be evaluated. `config` is its config.json."""
    trained = [p for _, p in tree_flatten(model.trainable_parameters())]
    held = [p for _, p in tree_flatten(model.parameters())]
    outputs = [len(m.weight) for layer in model.layers for m in layer.modules() if "weight" in m and m.weight.ndim == 2]
    config = config.get("text_config", config)
    return ModelShape(
        parameters=sum(p.size for p in held),
        trained=sum(p.size for p in trained),
        largest=max(p.size for p in trained),
        weight_bytes=sum(p.nbytes for p in held),
        itemsize=max(p.itemsize for p in trained),
        layers=len(model.layers),
        features=sum(outputs) // len(model.layers),
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        vocabulary=config["vocab_size"],
        shares=can_share_prefix(model),
        recomputes=can_checkpoint(model),
    )


def estimate(shape: ModelShape, config: Config, chunking: Chunking, lengths: MaxLengths) -> dict[str, float]:
    """Return the bytes that an update of these lengths holds at most, by purpose; their sum is the peak."""
    prompt, tokens = lengths.prompt, lengths.completion
    kept = {"masters": (8, 0 if shape.itemsize == 4 else 4), "stochastic": (6, 0), "study": (2 * shape.itemsize, 0)}
    moments, copy = kept[config.optimizer.precision]
    group = config.sampling.rollouts
    lanes = len(streams()) if chunking.rows is None else 1  # groups computed at once
    groups = min(lanes, config.train.prompts_per_step * config.train.accumulation_steps)
    sums = 1 if config.train.prompts_per_step * config.train.accumulation_steps == 1 else 2
    rows = chunking.rows or group
    shared = prompt if chunking.shared_prefix else 0
    branch = rows * (tokens + (0 if chunking.shared_prefix else prompt))
    scores = shape.heads * (shared**2 + branch * (prompt + tokens))
    features = ACTIVATIONS * shape.features
    if chunking.checkpointing:  # one layer in full; for the others their inputs and caches
        held = (shared + branch) * (features + shape.layers * 2 * shape.width) + SCORES * scores
    else:
        held = shape.layers * ((shared + branch) * features + SCORES * scores)
    logits = rows * tokens * shape.vocabulary
    if chunking.logits is not None:
        logits = min(logits, chunking.logits)
    gradient = shape.trained * shape.itemsize
    reference = any(stage.beta > 0 for stage in config.stages.values())
    return {
        "weights": float(shape.weight_bytes),
        "optimizer": float(shape.trained * (moments + copy)),
        "reference": float(gradient if reference else 0),
        "gradients": float(gradient * min(sums, groups + 1) + (shape.largest * 4 if rows < group else 0)),
        "activations": groups * held * 4.0,
        "logits": groups * LOGITS * logits * 4,
    }


def choose_chunking(shape: ModelShape, config: Config, lengths: MaxLengths) -> Chunking:
    """Return the fastest chunking within `engine.memory_budget_gb`; 0 is no budget.

    Raises MachineError where not even one rollout at a time fits, with the budget that would.
    """
    whole = replace(WHOLE, shared_prefix=config.engine.shared_prefix and shape.shares)
    budget = config.engine.memory_budget_gb * GB
    if not budget:
        return whole
    least = float("inf")
    for chunking in _ways(whole, shape, config.sampling.rollouts):
        needed = sum(estimate(shape, config, chunking, lengths).values())
        if needed <= budget:
            return chunking
        least = min(least, needed)
    raise MachineError(
        f"an update of one rollout at a time needs about {least / GB:.2f} GB, more than engine.memory_budget_gb ="
        f" {config.engine.memory_budget_gb:g}",
        hint=f"--set engine.memory_budget_gb={least / GB * 1.05:.2f}, a smaller model, or an adapter: "
        "--set lora.rank=8",
    )


def _ways(whole: Chunking, shape: ModelShape, group: int) -> Iterator[Chunking]:
    """Yield all chunkings, from the fastest to the one that needs the least memory."""
    sizes = [rows for rows in (group, group // 2, group // 4, 1) if rows]
    yield whole
    for checkpointing in (False, True)[: 1 + shape.recomputes]:
        for rows in dict.fromkeys(sizes):
            for logits in (CHUNK_LOGITS, CHUNK_LOGITS // 8):
                yield replace(whole, rows=rows, logits=logits, checkpointing=checkpointing)
