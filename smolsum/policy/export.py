"""A trained policy as files that other programs load: transformers, mlx-lm and vLLM, llama.cpp and Ollama;
adapters for mlx-lm."""

import json
from dataclasses import replace
from pathlib import Path

from mlx.utils import tree_flatten

from smolsum.config.hub import hub_name
from smolsum.config.sections import LoraConfig, ModelConfig
from smolsum.errors import UsageError
from smolsum.policy.chat_template import FILE, added_system, is_changed, template_of, trained_template, write_template
from smolsum.policy.gguf.modelfile import modelfile
from smolsum.policy.gguf.write import write_gguf
from smolsum.policy.load import Policy, load_policy
from smolsum.policy.lora import fused_weights, save_adapters
from smolsum.policy.weights import load_trained, save_policy

GENERATION = "generation_config.json"


def load_checkpoint(checkpoint: Path, model: ModelConfig, lora: LoraConfig | None, *, base: str = "") -> Policy:
    """Return the policy of a checkpoint with the settings of its run: the whole model, or its base with the adapters.
    Its `system` is the message that the checkpoint's chat template applies. Raises what `load_policy`
    and `load_trained` raise."""
    if lora is None:
        policy = load_policy(str(checkpoint), dtype=model.dtype, thinking=model.thinking)
        return replace(policy, source=model.path, system=added_system(policy.tokenizer.chat_template))
    policy = load_policy(
        model.path, dtype=model.dtype, lora=lora, quantize=model.quantize, thinking=model.thinking,
        chat_template=template_of(checkpoint, model.chat_template),
    )  # fmt: skip
    load_trained(policy, checkpoint, base=base)
    path = checkpoint / FILE
    return replace(policy, system=added_system(path.read_text(encoding="utf-8")) if path.is_file() else "")


def export_policy(policy: Policy, folder: Path) -> int:
    """Write the whole model, adapters merged and nothing quantised, in the Hugging Face layout, and return the number
    of its parameters. What it generates by default is greedy, as evaluations decode."""
    config = {key: value for key, value in policy.config.items() if key not in ("quantization", "quantization_config")}
    weights = policy.model.parameters() if policy.lora is None else fused_weights(policy.model)
    save_policy(replace(policy, config=config), weights, folder)
    path = folder / GENERATION
    known = json.loads(path.read_text()) if path.is_file() else {}
    ends = sorted(policy.eos_ids)
    ids = {key: known[key] for key in ("bos_token_id", "pad_token_id") if key in known}
    ids["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    path.write_text(json.dumps(ids | {"do_sample": False}, indent=2) + "\n")
    return sum(array.size for _, array in tree_flatten(weights))


def export_gguf(policy: Policy, folder: Path, *, kind: str, name: str, most: int) -> tuple[str, int]:
    """Write the whole model, adapters merged, as a GGUF file with matrices of this type (`FILE_TYPES`), and a Modelfile
    for Ollama that answers greedily, with at most so many tokens. Return the file's name and the number of the model's
    parameters. Raises what `write_gguf` raises."""
    weights = policy.model.parameters() if policy.lora is None else fused_weights(policy.model)
    file = f"{name}-{kind}.gguf"
    template = trained_template(policy.tokenizer, policy.system)
    write_gguf(policy, weights, folder / file, kind=kind, name=name, template=template)
    (folder / "Modelfile").write_text(modelfile(policy, file, most=most), encoding="utf-8")
    return file, sum(array.size for _, array in tree_flatten(weights))


def export_adapters(policy: Policy, folder: Path) -> int:
    """Write the adapters in mlx-lm's format, for a base model from the hub, and return the number of their parameters.
    Raises UsageError for a policy without adapters, and for a base that others do not have."""
    if policy.lora is None:
        raise UsageError("the run trained all weights and has no adapters", hint="leave --adapter out")
    base = hub_name(policy.source)
    if base is None or not policy.commit:
        raise UsageError(
            f"the adapters' base, {policy.source}, is not on the hub, where others could get it",
            hint="leave --adapter out: the whole model is exported",
        )
    save_adapters(policy.model, policy.lora, base.id, folder)
    if is_changed(policy.tokenizer.chat_template):  # the base comes with another, or with none
        write_template(policy.tokenizer, policy.system, folder)
    return sum(array.size for _, array in tree_flatten(policy.model.trainable_parameters()))
