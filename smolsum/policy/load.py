"""A policy from a built-in model, a local directory, a GGUF file or the hub.

Some architectures compute logits in their own way, or read their caches as if a batch held one prompt. Such a model
would fail late, or be sampled wrongly without an error. So each model is tried when it is loaded.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import xxhash
from mlx.utils import tree_flatten, tree_map
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tokenizer_utils import load as load_tokenizer
from mlx_lm.utils import _get_classes, load_model

from smolsum.config.fields import Thinking
from smolsum.config.hub import HubName, download_command, hub_name, silence_hub_client
from smolsum.config.sections import LoraConfig
from smolsum.errors import SmolsumError, UnreachableError, UsageError, nearest
from smolsum.files import digest
from smolsum.policy import fast_math
from smolsum.policy.chat_template import (
    closing_ids,
    no_template,
    read_template,
    renders_system,
    set_template,
    without_thinking,
)
from smolsum.policy.gguf.cache import cached_model, is_outline
from smolsum.policy.logprobs import group_logprobs
from smolsum.policy.lora import add_adapters, base_of, is_quantised, quantise
from smolsum.policy.sampling import generate

BUILTIN = "builtin:"
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DTYPES: dict[Dtype, mx.Dtype] = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
COMPANIONS = ("*.json", "*.jinja", "*.txt", "*.model")
"""the files of a checkpoint besides its weights"""
FUSED = "fused"
"""the folder of an adapter checkpoint that holds the whole model"""
SIZES = (
    "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers", "intermediate_size",
    "vocab_size",
)  # fmt: skip
"""the sizes in a config.json that most architectures have"""
_supported: set[str] = set()
"""digests of the config.json files whose architecture was tried in this process"""
LAYOUT = "give a directory in the Hugging Face layout: config.json, *.safetensors, tokenizer.json"
PARTLY = "if its download was interrupted, run this again where the hub can be reached; other formats are not read"
"""of a folder of the hub's cache"""
TRIAL_PROMPTS, TRIAL_SAMPLES, TRIAL_TOKENS = ((3, 4, 5, 6, 7), (8,)), 2, 4
"""prompts of unequal length that are decoded together, the rollouts of each, and the tokens of a rollout"""
MAX_DIFFERENCE, MAX_DIFFERENCE_HALF = 0.01, 0.5
"""in nats, for float32 and for half precision: more than rounding, less than what a wrong mask does"""


@dataclass(frozen=True)
class Policy:
    """A language model with its tokenizer, where it came from, and its `config.json`."""

    model: nn.Module
    tokenizer: TokenizerWrapper
    path: Path
    config: Mapping[str, Any]
    lora: LoraConfig | None = None
    """the adapters that are trained instead of the weights"""
    source: str = ""
    """what it was loaded from: `builtin:NAME`, a directory, a GGUF file or a hub id, perhaps with a revision"""
    system: str = ""
    """the system message that it is trained with, which its checkpoints apply to chats without one; empty: none"""

    @property
    def commit(self) -> str:
        """The commit of a model from the hub; empty for others, such as a folder of the hub's cache."""
        return self.path.name if _on_hub(self.source) and self.path.parent.name == "snapshots" else ""

    @property
    def quantised(self) -> bool:
        """Whether weights are quantised, so that only adapters can be trained."""
        return is_quantised(self.model)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a completion."""
        return frozenset(self.tokenizer.eos_token_ids)

    @cached_property
    def end_id(self) -> int:
        """The token that ends a completion which was not sampled: of `eos_ids` that which the chat template puts after
        what an assistant says, else the tokenizer's own."""
        return next(filter(self.eos_ids.__contains__, closing_ids(self.tokenizer)), int(self.tokenizer.eos_token_id))

    @cached_property
    def renders_system(self) -> bool:
        """Whether the chat template renders system messages."""
        return renders_system(self.tokenizer)

    @property
    def dtype(self) -> Dtype:
        """Type of the weights that compute: float32, bfloat16 or float16."""
        weights = {p.dtype for _, p in tree_flatten(self.model.parameters())}
        return next(name for name, dtype in DTYPES.items() if dtype in weights)

    @property
    def weight_bytes(self) -> int:
        """Size of all weights in memory, read or not."""
        return sum(p.nbytes for _, p in tree_flatten(self.model.parameters()))


def load_policy(
    path_or_id: str,
    *,
    dtype: Dtype | None = None,
    lora: LoraConfig | None = None,
    quantize: int = 0,
    thinking: Thinking = "template",
    chat_template: str = "",
    seed: int = 0,
    shapes_only: bool = False,
    convert: bool = True,
) -> Policy:
    """Return the policy at `builtin:NAME`, a local directory, a GGUF file or a hub id (OWNER/NAME or
    OWNER/NAME@REVISION), its floating-point weights as `dtype`.

    With `lora` the weights are frozen and adapters, drawn from `seed`, are trained; `quantize` is 0, or the bits (4 or
    8) that weights are quantised to; `thinking` can switch that of the chat template off, and `chat_template` names a
    file with another one. With `shapes_only` no weight is read: the arrays have shapes and types only, until
    `read_weights`. A GGUF file is converted once, into the cache; with `shapes_only` and without `convert` its weights
    are not, and cannot be read later.

    `None` or "auto" means float32 on the CPU, where half precision is 30 times slower, and the checkpoint's type on a
    GPU. Raises UsageError where a file is missing, broken or of an unknown architecture; UnreachableError where
    the hub does not answer.
    """
    own = read_template(chat_template) if chat_template else ""
    path = locate(path_or_id, outline=shapes_only and not convert, bare=bool(own))
    config = _check(path)
    eos_ids = _eos(path, config)
    try:
        _check_layers(path, config)
        rope = rope_settings(config)
        config |= rope
        model, _ = load_model(path, lazy=True, model_config=rope)
        tokenizer = load_tokenizer(path, eos_token_ids=eos_ids)
    except (ValueError, RuntimeError, KeyError, OSError, TypeError, ArithmeticError) as error:
        raise UsageError(
            f"{path} cannot be loaded: {_wrong_size(config) or _first_line(error)}",
            hint="check the files or download the model again",
        ) from error
    if own:
        set_template(tokenizer, own, chat_template)
    if not tokenizer.chat_template:
        raise no_template(path_or_id)
    if thinking == "off":
        try:
            tokenizer.chat_template = without_thinking(tokenizer.chat_template)
        except ValueError as error:
            raise UsageError(
                f"model.thinking = off, but the model in {path} does not think: {error}",
                hint="--set model.thinking=template",
            ) from error
    if dtype in (None, "auto") and mx.default_device().type == mx.DeviceType.cpu:
        dtype = "float32"
    if quantize:
        quantise(model, config, quantize)  # from the checkpoint's values, as mlx_lm.convert does
    if dtype in DTYPES:
        model.set_dtype(DTYPES[dtype])
    fast_math.install(model)
    policy = Policy(model, tokenizer, path, config, lora, path_or_id)
    if lora:
        add_adapters(model, lora, dtype=DTYPES[policy.dtype], seed=seed)
    if not shapes_only:
        read_weights(policy)
    return policy


def read_weights(policy: Policy) -> None:
    """Read the weights of a policy that was loaded with `shapes_only`. Raises UsageError for an architecture that does
    not work, and ValueError for a GGUF file that was not converted."""
    if is_outline(policy.path):
        raise ValueError(f"the weights of {policy.source} were not converted: load it with convert=True")
    for _, array in tree_flatten(policy.model.parameters()):
        mx.eval(array)  # one by one: of no two are the file's and the computing type in memory together
    architecture = digest(policy.config)
    if architecture not in _supported:
        check_supported(policy.model, f"{policy.path} (architecture {policy.config['model_type']!r})")
        _supported.add(architecture)  # other weights of the same architecture work too


def check_supported(model: nn.Module, name: str) -> None:
    """Raise UsageError for a model that fails, or whose log-probs of sampling in a batch are not those of scoring."""
    half = any(p.dtype in (mx.bfloat16, mx.float16) for _, p in tree_flatten(model.parameters()))
    try:
        difference = _difference(model)
        if difference <= (MAX_DIFFERENCE_HALF if half else MAX_DIFFERENCE):
            return
        if not np.isfinite(difference):
            raise UsageError(
                f"the model {name} gives log-probs that are not finite", hint="check its weights, or download it again"
            )
        reason = f"gives sampled tokens log-probs that differ by {difference:.2g} nats from those of scoring"
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
        reason = f"does not work with smolsum: {(str(error) or type(error).__name__).splitlines()[0]}"
    hint = "choose a model of another architecture (qwen2, qwen3, llama, gemma, lfm2, …)"
    raise UsageError(f"the model {name} {reason}", hint=hint)


def _difference(model: nn.Module) -> float:
    """Return the largest difference in nats between the log-probs of sampling in a batch and those of scoring; NaN or
    infinite where one is."""
    seeds = [[TRIAL_SAMPLES * p + g for g in range(TRIAL_SAMPLES)] for p in range(len(TRIAL_PROMPTS))]
    sampled = generate(model, TRIAL_PROMPTS, seeds, eos_ids=frozenset(), temperature=1.0, max_new_tokens=TRIAL_TOKENS)
    found = []
    for prompt, row in zip(TRIAL_PROMPTS, sampled, strict=True):
        completions = [one.token_ids for one in row]
        for shared in (True, False):
            logp, _ = group_logprobs(model, prompt, completions, shared_prefix=shared)
            found.append(np.abs(np.array(logp) - np.array([one.logprobs for one in row])).max())
    return float(np.max(found))  # NaN if one is


def load_decoder(path_or_id: str) -> Callable[[Sequence[int]], str]:
    """Return a function from token ids of the model at `path_or_id` to text without special tokens. No weight is read.
    Raises what `load_policy` raises."""
    tokenizer = _load_tokenizer(path_or_id)
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True))


def load_encoder(path_or_id: str) -> Callable[[str], list[int]]:
    """Return a function from text to token ids of the model at `path_or_id`, without special tokens around them. No
    weight is read. Raises what `load_policy` raises."""
    tokenizer = _load_tokenizer(path_or_id)
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False))


def _load_tokenizer(path_or_id: str) -> TokenizerWrapper:
    path = locate(path_or_id, outline=True, bare=True)
    try:
        return load_tokenizer(path)
    except (ValueError, RuntimeError, KeyError, OSError, TypeError) as error:
        raise UsageError(
            f"the tokenizer in {path} cannot be loaded: {_first_line(error)}",
            hint="check the files or download the model again",
        ) from error


def locate(path_or_id: str, *, outline: bool = False, bare: bool = False) -> Path:
    """Return the local directory of a model. A hub id is found in the hub's cache, or downloaded into it; a GGUF file
    is converted into smolsum's cache, or with `outline` all of it but the weights; only with `bare` where it has no
    chat template."""
    if path_or_id.startswith(BUILTIN):
        folder = Path(__file__).with_name("builtin")
        names = sorted(p.parent.name for p in folder.glob("*/config.json"))
        name = path_or_id.removeprefix(BUILTIN)
        if name not in names:
            raise UsageError(f"no built-in model {name!r}", hint=nearest(name, names))
        return folder / name
    if (hub := _on_hub(path_or_id)) is not None:
        return _download(hub)
    path = Path(path_or_id).expanduser()
    if path.is_file():
        return cached_model(path, outline=outline, bare=bare)
    if not path.is_dir():
        raise UsageError(
            f"no model at {path_or_id!r}: no such directory or GGUF file, and not a hub id (OWNER/NAME[@REVISION])",
            hint="give a directory with config.json and *.safetensors, a .gguf file, or a preset: tiny, tiny-lfm, qwen,"
            " lfm",
        )
    return path


def is_here(path_or_id: str) -> bool:
    """Return whether the model is on this machine: built in, a directory, a GGUF file, or in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    hub = _on_hub(path_or_id)
    return hub is None or isinstance(try_to_load_from_cache(hub.id, "config.json", revision=hub.revision or None), str)


def _on_hub(path_or_id: str) -> HubName | None:
    """Return the parts of a hub id, None for a path on this machine: one that exists, or looks like a path or a GGUF
    file, is never looked up on a hub. A model has no configurations."""
    if path_or_id[:1] in ("", ".", "/", "~") or path_or_id.lower().endswith(".gguf") or Path(path_or_id).exists():
        return None
    hub = hub_name(path_or_id)
    return hub if hub is not None and not hub.configuration else None


def _download(hub: HubName) -> Path:
    from huggingface_hub import constants, errors, snapshot_download

    silence_hub_client()
    hub_id = str(hub)
    try:
        patterns = ["*.safetensors", *COMPANIONS]
        return Path(snapshot_download(hub.id, revision=hub.revision or None, allow_patterns=patterns))
    except errors.RevisionNotFoundError as error:
        raise UsageError(
            f"hub model {hub.id!r} has no revision {hub.revision!r}",
            hint=f"--model {hub.id}, perhaps with @ and a branch, tag or commit",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UsageError(
            f"hub model {hub_id!r} does not exist, or you have no access: {_first_line(error)}",
            hint="check the name, or hf auth login",
        ) from error
    except Exception as error:  # the client's connection errors share no base that it exports
        if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError | TimeoutError):
            raise SmolsumError(
                f"hub model {hub_id!r} cannot be stored on this disk: {_first_line(error)}",
                hint="set HF_HOME to a writable directory with free space",
            ) from error
        offline = " (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else ""
        reason = _first_line(error).removeprefix("Got: ")  # as the client introduces the cause
        raise UnreachableError(
            f"the hub did not answer for model {hub_id!r}{offline}: {reason}",
            hint=f"try again later, or `{download_command(hub_id)} --local-dir DIR` elsewhere and --set model.path=DIR",
        ) from error


def _check(path: Path) -> dict[str, Any]:
    """Return the model's config. Raises UsageError unless the model is complete and of a supported architecture."""
    if (base := base_of(path)) is not None and not (path / "config.json").is_file():
        over = f", over the base {base}" if base else ""
        whole = (
            f"give {path / FUSED}" if (path / FUSED).is_dir() else "train with --set lora.fuse=true for whole models"
        )
        raise UsageError(f"{path} holds adapters only{over}", hint=f"evaluate it inside its run, or {whole}")
    if not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        raise UsageError(f"{path} has no config.json", hint=f"give the file: {files[0]}" if files else LAYOUT)
    config = _json(path / "config.json")
    try:
        _get_classes(config)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        kind = config.get("model_type", "nothing") if isinstance(config, dict) else "nothing"
        raise UsageError(
            f"{path} holds the architecture {kind!r}, which mlx-lm does not support",
            hint="choose a model of a supported architecture (qwen2, qwen3, llama, gemma, lfm2, …)",
        ) from error
    index = path / "model.safetensors.index.json"
    try:
        listed = set(_json(index)["weight_map"].values()) if index.is_file() else set[str]()
    except (KeyError, AttributeError, TypeError) as error:
        raise UsageError(f"{index} has no weight_map", hint=LAYOUT) from error
    missing = sorted(name for name in listed if not (path / name).is_file())
    hint = PARTLY if path.parent.name == "snapshots" else LAYOUT
    if missing or not any(path.glob("model*.safetensors")):
        raise UsageError(f"{path} has no {missing[0] if missing else 'model*.safetensors'}", hint=hint)
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise UsageError(f"{path} has no tokenizer.json", hint=hint)
    return dict(config)


def rope_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a config.json of transformers 5 has in `rope_parameters` alone, below the names of before, which are
    those that most architectures of mlx-lm read: without them they take their defaults."""
    held = config.get("rope_parameters")
    held = held if isinstance(held, dict) else {}
    whole, local = held.get("full_attention", held), held.get("sliding_attention", {})
    scaling = {key: value for key, value in whole.items() if key != "rope_theta"}
    scaling |= {"type": scaling.get("rope_type", "default")}  # the older name
    found = {
        "rope_theta": whole.get("rope_theta"),
        "rope_scaling": None if scaling["type"] == "default" else scaling,
        "rope_local_base_freq": local.get("rope_theta"),
    }
    lacking = {key: value for key, value in found.items() if value is not None and config.get(key) is None}
    text = config.get("text_config")  # of a model that also reads images
    nested = rope_settings(text) if isinstance(text, dict) else {}
    return lacking | ({"text_config": {**text, **nested}} if text and nested else {})


def _wrong_size(config: Mapping[str, Any]) -> str:
    """Return in words which size of the config is no whole number above 0; empty where all are. Asked only about a
    model that cannot be loaded, since some architectures have layers without heads."""
    for key in SIZES:
        value = config.get(key)
        if isinstance(value, str | float | bool) or (isinstance(value, int) and value <= 0):
            return f"{key} in config.json must be a whole number above 0, got {value!r}"
    return ""


def _check_layers(path: Path, config: Mapping[str, Any]) -> None:
    """Raise UsageError where the config has more layers than the weights have tensors: to build them takes minutes."""
    layers = config.get("num_hidden_layers") or 0
    if layers > (tensors := sum(len(mx.load(str(file))) for file in path.glob("model*.safetensors"))):
        raise UsageError(f"{path}/config.json has {layers} layers, the weights {tensors} tensors", hint=LAYOUT)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # neither JSON nor UTF-8
        raise UsageError(f"{path} is not JSON: {_first_line(error)}", hint=LAYOUT) from error


def _eos(path: Path, config: Mapping[str, Any]) -> list[int] | int | None:
    """Return the EOS ids as generation reads them: from generation_config.json, else from config.json."""
    generation = path / "generation_config.json"
    held = _json(generation) if generation.is_file() else {}
    if not isinstance(held, dict):
        raise UsageError(f"{generation} holds no object", hint=LAYOUT)
    found = held.get("eos_token_id")
    eos: list[int] | int | None = found if found is not None else config.get("eos_token_id")
    return eos


def _first_line(error: Exception) -> str:
    lines = (str(error) or type(error).__name__).splitlines()
    return " ".join(lines[: 1 + lines[0].rstrip().endswith(":")]).rstrip(".")


def weights_hash(path: Path) -> str:
    """xxh3_128, in hex, of the weight files of a model directory, in order of name."""
    digest = xxhash.xxh3_128()
    for file in sorted(path.glob("model*.safetensors")):
        with file.open("rb") as stream:
            while block := stream.read(1 << 24):
                digest.update(block)
    return str(digest.hexdigest())


def snapshot(model: nn.Module) -> Any:
    """Return the trainable parameters (with adapters, only those) as a tree that later updates do not change."""
    # the same arrays in another tree: an update replaces the model's arrays, and never writes into them
    return tree_map(lambda p: p, model.trainable_parameters())


def encode_chat(policy: Policy, messages: list[dict[str, str]]) -> list[int]:
    """Return token ids of the chat up to the start of the answer. Where a template has no system role, refuses it or
    leaves it out, the system message goes into the user's turn. Raises UsageError where the template refuses both."""
    refusal: Exception | None = None
    folds = any(m["role"] == "system" for m in messages) and not policy.renders_system
    for turns in (_without_system(messages),) if folds else (messages, _without_system(messages)):
        try:
            return list(policy.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))
        except Exception as error:  # templates raise anything
            refusal = refusal or error
    assert refusal is not None
    what = f"the chat template of {policy.source or policy.path} refuses the prompt: {_first_line(refusal)}"
    raise UsageError(what, hint="check its chat_template") from refusal


def _without_system(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the chat with its system messages at the start of the first other turn."""
    system = [m["content"] for m in messages if m["role"] == "system"]
    first, *others = [m for m in messages if m["role"] != "system"] or [{"role": "user", "content": ""}]
    return [first | {"content": "\n\n".join([*system, first["content"]])}, *others]
