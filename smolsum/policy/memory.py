"""The peak memory of training, estimated before anything is loaded, and the chunking that keeps it within a limit.

Counts MLX's arrays while rollouts are sampled, while an update is computed, and while the optimizer moves the weights;
the largest of the three is the peak. What the process holds apart from arrays comes on top (`device_memory`).
The constants are fitted to peaks of MLX 0.32 on the CPU (`benchmarks/memory.py` compares them), which frees an array
some operations after its last use.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from smolsum.config.sections import Config
from smolsum.policy.cpu import decode
from smolsum.policy.cpu.gradient import CHUNK_LOGITS as CHUNK_IN_C
from smolsum.policy.cpu.gradient import (
    KEPT_LOGITS,
    PASS_VALUES,
    SPARE_VALUES,
    can_differentiate,
    forget_most_mapped,
    most_mapped,
)
from smolsum.policy.cpu.merged import merged
from smolsum.policy.cpu.streams import PART, streams
from smolsum.policy.group_gradient import WHOLE, Chunking, can_checkpoint, fits_c
from smolsum.policy.logprobs import CHUNK_LOGITS, can_share_prefix, text_model
from smolsum.policy.sampling import READ_AT_ONCE

ACTIVATIONS = 2.0
"""float32 values held for backward, for each output of a layer's matrices"""
SCORES = 0.9
"""for each attention score"""
LOGITS = 7.0
"""for each logit: the loss's own arrays, of which backward needs one"""
CHUNKED_LOGITS = 15.0
"""for each logit of a chunk: the operations that MLX queues ahead have their arrays already"""
SAMPLED_LOGITS = 6.0
"""for each logit of a decoded token"""
GRADIENTS = 0.3
"""share of a group's gradient, without its largest tensor, that is there when most activations still are"""
CHUNK_GRADIENTS, TWICE_GRADIENTS = 1.2, 1.15
"""the same in chunks, where the completions' gradient is complete before the prompt's begins: as a share of the whole
gradient, without and with layers that are computed twice"""
LARGEST_AT_END = 1.15
"""of the gradient of the largest tensor, what is there besides the whole gradient when that is complete"""
PROMPT_STATES = 1.3
"""the gradient that each chunk has by the prompt's keys and values, as a multiple of those"""
UNPACKED = 2.0
"""quantised matrices that are unpacked at a time: the one at work, and one that MLX has not freed yet"""
READ_SCORES = 5.5
"""arrays of attention scores while a prompt is read in float32, where they are computed one by one (fast_math)"""
COPIES_OF_CACHES = 2.0
"""of what layers remember while sampling: it is there once more while it is put together"""
UPDATED = 10
"""float32 values under way in an optimizer step, for each value that the streams work on"""
KEPT_WIDTHS, LAYER_AT_WORK = 3.0, 2.0
"""in C: what a layer keeps of a token besides the outputs of its matrices, as multiples of the width or of the queries,
whichever are more; what the layer under way needs besides, as a multiple of those outputs"""
WIDTH = ("hidden_size", "n_embd", "d_model", "model_dim", "hidden_dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads")
"""names that architectures have for these sizes"""
STATE_TOKENS = 256
"""length of the prompt on which what layers remember is found: the step by which mlx-lm's caches grow"""


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
    queries: int
    """outputs of the widest projection to queries"""
    vocabulary: int
    remembered: int
    """bytes that all layers remember of a token"""
    unpacked: int
    """values of the largest quantised matrix"""
    shares: bool
    """whether a prompt's completions can share what its layers remember"""
    recomputes: bool
    """whether its layers can be checkpointed"""
    merged: int
    """values of the matrices into which adapters are merged for C, and by which it has a gradient"""
    in_c: bool
    """whether updates without chunks are computed in C"""
    sampled_in_c: bool
    """whether completions are sampled in C"""


@dataclass(frozen=True)
class MaxLengths:
    """Tokens of the longest prompt and of the longest completion of any update."""

    prompt: int
    completion: int


def shape_of(model: nn.Module) -> ModelShape:
    """Return the shape of a model, whose weights need not be evaluated."""
    trained = [p for _, p in tree_flatten(model.trainable_parameters())]
    held = [p for _, p in tree_flatten(model.parameters())]
    outputs = [len(m.weight) for layer in model.layers for m in layer.modules() if "weight" in m and m.weight.ndim == 2]
    features = sum(outputs) // len(model.layers)
    remembered, vocabulary = _of_a_pass(model)
    return ModelShape(
        parameters=sum(p.size for p in held),
        trained=sum(p.size for p in trained),
        largest=max(p.size for p in trained),
        weight_bytes=sum(p.nbytes for p in held),
        itemsize=max(p.itemsize for p in trained),
        layers=len(model.layers),
        features=features,
        width=_size(model, WIDTH) or features,
        heads=_size(model, HEADS),
        queries=max(
            (len(m.weight) for n, m in model.named_modules() if n.endswith("q_proj") and "weight" in m), default=0
        ),
        vocabulary=vocabulary,
        remembered=remembered,
        unpacked=max((_unpacked(module) for module in model.modules()), default=0),
        shares=can_share_prefix(model),
        recomputes=can_checkpoint(model),
        merged=_merged(model),
        in_c=can_differentiate(model),
        sampled_in_c=decode.can_decode(model),
    )


def _size(model: nn.Module, names: Sequence[str]) -> int:
    """Return the first of these settings that mlx-lm's model has, the largest value where it is one of each layer; 0
    where it has none."""
    text = text_model(model)
    settings = vars(getattr(text, "args", None) or text.config)
    value = next((settings[name] for name in names if settings.get(name)), 0)
    return int(max(value) if isinstance(value, list) else value)


def _of_a_pass(model: nn.Module) -> tuple[int, int]:
    """Return the bytes that all layers remember of one token, in the mean over a short prompt, and the number of logits
    of a token. Nothing is computed."""
    caches = make_prompt_cache(model)
    logits = model(mx.zeros((1, STATE_TOKENS), mx.int32), cache=caches)
    arrays = [array for _, array in tree_flatten([cache.state for cache in caches]) if isinstance(array, mx.array)]
    return int(sum(array.nbytes for array in arrays) // STATE_TOKENS), logits.shape[-1]


def _merged(model: nn.Module) -> int:
    before = {id(array) for _, array in tree_flatten(model.parameters())}
    return sum(array.size for _, array in tree_flatten(merged(model).parameters()) if id(array) not in before)


def _unpacked(module: nn.Module) -> int:
    """Return the values of a quantised matrix, which its products unpack; 0 for every other module."""
    return int(module.scales.size * module.group_size) if "scales" in module else 0


def estimate(shape: ModelShape, config: Config, chunking: Chunking, lengths: MaxLengths) -> dict[str, float]:
    """Return the bytes that arrays take at the peak, by purpose; their sum is the peak."""
    # bytes of a value's two moments and of its copy; float32 weights are their own masters
    kept = {"masters": (8, 0 if shape.itemsize == 4 else 4), "stochastic": (6, 0), "study": (2 * shape.itemsize, 0)}
    moments, copy = kept[config.optimizer.precision]
    gradient = float(shape.trained * shape.itemsize)
    keeps_start = any(stage.beta > 0 or stage.learn == "recombined" for stage in config.stages.values())
    always = {
        "weights": float(shape.weight_bytes),
        "optimizer": float(shape.trained * (moments + copy)),
        "reference": gradient if keeps_start else 0.0,
    }
    if _learns_more(config):
        always["others"] = gradient  # of the main objective, while that of hindsight or countdown is computed
    if shape.in_c and fits_c(chunking):
        update = _of_update_in_c(shape, config, lengths)
        if (space := sum(update.values())) <= 4 * SPARE_VALUES:  # stays from update to update
            always["updates"], update = space, {}
        update["gradients"] = gradient + 4 * shape.merged
        update["merged"] = 4.0 * shape.merged
    else:
        update = _of_update(shape, config, chunking, lengths, gradient)
    phases = (
        update,
        {"gradients": gradient, "step": _of_step(shape)},
        {"sampling": of_sampling(shape, config, lengths)},
    )
    return always | max(phases, key=lambda phase: sum(phase.values()))


def _of_update(
    shape: ModelShape, config: Config, chunking: Chunking, lengths: MaxLengths, gradient: float
) -> dict[str, float]:
    """Return the bytes of gradients, activations and logits where together they are the most."""
    prompt, tokens = lengths.prompt, lengths.completion
    group = _rows(config)
    whole = chunking.rows is None
    count = config.train.prompts_per_step * config.train.accumulation_steps
    groups = min(len(streams()) if whole else 1, count)  # at once
    earlier = gradient if count > groups else 0.0
    rows = chunking.rows or group
    shared = prompt if chunking.shared_prefix else 0
    branch = rows * (tokens + (0 if chunking.shared_prefix else prompt))
    scores = SCORES * shape.heads * (shared**2 + branch * (prompt + tokens))
    attended = 0.0
    if chunking.shared_prefix:  # keys and values of each rollout, and the gradient of the prompt's from each chunk
        attended = (rows * (prompt + tokens) + PROMPT_STATES * -(-group // rows) * prompt) * shape.remembered / 4
    features = ACTIVATIONS * shape.features
    if chunking.checkpointing:  # one layer in full; for the others their inputs and caches
        held = (shared + branch) * (features + shape.layers * 2 * shape.width) + scores + attended
    else:
        held = shape.layers * ((shared + branch) * features + scores) + attended
    logits = LOGITS * rows * tokens * shape.vocabulary
    if chunking.logits is not None:
        logits = min(logits, CHUNKED_LOGITS * chunking.logits)
    largest = float(shape.largest * shape.itemsize)
    before = gradient if rows < group else 0.0  # the sum over the chunks before
    in_chunks = (TWICE_GRADIENTS if chunking.checkpointing else CHUNK_GRADIENTS) * gradient
    first = largest + GRADIENTS * (gradient - largest) if whole else before + in_chunks
    start = {
        "gradients": earlier + groups * first,
        "activations": groups * held * 4.0 + groups * UNPACKED * 4 * shape.unpacked,
        "logits": groups * logits * 4,
    }
    # in chunks the completions' part and the prompt's part of the gradient are both complete before they are added
    complete = gradient + max(before, 0.0 if whole else gradient)
    end = {"gradients": earlier + groups * (complete + LARGEST_AT_END * largest)}
    return max(start, end, key=lambda parts: sum(parts.values()))


def _learns_more(config: Config) -> bool:
    return any(stage.hindsight > 0 or stage.countdown > 0 for stage in config.stages.values())


def _rows(config: Config) -> int:
    """Return how many completions of a prompt an update holds at once."""
    if _learns_more(config):
        return config.sampling.rollouts  # all of them, whatever the main objective leaves out
    return config.grpo.update_rollouts or config.sampling.rollouts


def _of_update_in_c(shape: ModelShape, config: Config, lengths: MaxLengths) -> dict[str, float]:
    """Return the bytes of activations and logits in C: of as many groups as a pass takes."""
    scored = _rows(config) * lengths.completion
    rows = lengths.prompt + scored
    kept = shape.features + KEPT_WIDTHS * max(shape.width, shape.queries)
    held = float(rows * (shape.layers * kept + LAYER_AT_WORK * shape.features))
    logits = float(scored * shape.vocabulary)
    if logits > KEPT_LOGITS:
        logits = float(max(CHUNK_IN_C, shape.vocabulary))
    count = config.train.prompts_per_step * config.train.accumulation_steps
    groups = max(1.0, min(count, PASS_VALUES / (held + logits)))
    return {"activations": groups * held * 4, "logits": groups * logits * 4}


def _of_step(shape: ModelShape) -> float:
    """Return the bytes of an optimizer step beyond weights, state and gradient: the parts that are under way, and the
    new values of a tensor of several parts."""
    parts = UPDATED * min(shape.largest, len(streams()) * PART) * 4.0
    return parts + (shape.largest * shape.itemsize if shape.largest > PART else 0)


def of_sampling(shape: ModelShape, config: Config, lengths: MaxLengths) -> float:
    """Return the bytes of sampling here: what the layers remember of all rows, and the logits. An evaluation or a
    validation has `train.eval_batch` rows."""
    prompts = 0 if config.workers.urls else config.train.prompts_per_step * config.train.accumulation_steps
    steps, evaluation = (prompts, prompts * config.sampling.rollouts), (config.train.eval_batch,) * 2
    if shape.sampled_in_c:  # each prompt once, and room for whole blocks
        room = [-(-tokens // decode.BLOCK) * decode.BLOCK for tokens in (lengths.prompt, lengths.completion)]
        positions = max(n * room[0] + rows * room[1] for n, rows in (steps, evaluation))
        return float(
            positions * shape.remembered + 4 * (decode.ROWS * (shape.vocabulary + shape.features) + shape.merged)
        )
    rows = max(steps[1], evaluation[1])
    whole = rows * (lengths.prompt + lengths.completion) * shape.remembered
    scores = READ_SCORES if shape.itemsize == 4 else 1.0
    unpacked = UNPACKED * shape.unpacked
    read = lengths.prompt * 4 * shape.features + scores * shape.heads * lengths.prompt**2 + unpacked
    prefill = min(READ_AT_ONCE, len(streams()), max(prompts, config.train.eval_batch)) * read
    decoding = SAMPLED_LOGITS * rows * shape.vocabulary + unpacked
    return COPIES_OF_CACHES * whole + 4.0 * max(prefill, decoding)


def ways(shape: ModelShape, config: Config) -> Iterator[Chunking]:
    """Yield all chunkings, from the fastest to the one that needs the least memory."""
    medium = config.optimizer.matmul_precision == "medium"
    whole = replace(WHOLE, shared_prefix=config.engine.shared_prefix and shape.shares, bfloat16=medium)
    group = config.grpo.update_rollouts or config.sampling.rollouts
    sizes = [rows for rows in (group, group // 2, group // 4, 1) if rows]
    yield whole
    if medium:  # which the library in C alone has, and it takes groups whole
        return
    for checkpointing in (False, True)[: 1 + shape.recomputes]:
        for rows in dict.fromkeys(sizes):
            for logits in (CHUNK_LOGITS, CHUNK_LOGITS // 8):
                yield replace(whole, rows=rows, logits=logits, checkpointing=checkpointing)


def reset_peak() -> None:
    """Begin to measure a new peak."""
    mx.reset_peak_memory()
    forget_most_mapped()


def peak_gb() -> float:
    """Return the most memory that arrays and passes in C held since `reset_peak`, in GB."""
    return float((mx.get_peak_memory() + most_mapped()) / 1e9)
