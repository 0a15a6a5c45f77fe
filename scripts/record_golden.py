"""Record what TRL computes on fixed arrays, for tests/golden: losses and gradients, advantages, token log-probs.

    python scripts/record_golden.py        # needs trl==1.16.* and torch

TRL's own GRPOTrainer computes them: its constructor, `_generate_and_score_completions` (masks of truncated
completions, correction weights, advantages), `_compute_loss` and `_get_per_token_logps_and_entropies`. Only what would
sample, score or, for the losses, run a model is replaced by fixed numbers. The same versions give the same files.
"""

from __future__ import annotations

import json
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden"
GROUPS, ROLLOUTS, LONGEST, LIMIT = 2, 4, 7, 9
"""two prompts of four completions; the token limit exceeds the longest, so that Dr. GRPO's denominator shows"""
PAD, EOS = 0, 2
LENGTHS = (7, 3, 5, 1, 6, 7, 2, 4)
TRUNCATED = (1, 5)
"""rows that do not end in EOS"""
SHAPE = {
    "vocab_size": 19, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 12, "max_position_embeddings": 64, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}  # fmt: skip
KINDS = {
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05, "epsilon_high": 0.08},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.3},
}
CORRECTIONS = {
    "none": {"vllm_importance_sampling_correction": False},
    "token_truncate": {"vllm_importance_sampling_clip_max": 1.2},
    "sequence_truncate": {"vllm_importance_sampling_clip_max": 1.2},
    "token_mask": {"vllm_importance_sampling_clip_min": 0.7, "vllm_importance_sampling_clip_max": 1.2},
    "sequence_mask": {"vllm_importance_sampling_clip_min": 0.5, "vllm_importance_sampling_clip_max": 1.5},
}
AGGREGATIONS = {
    "group": {"scale_rewards": "group"},
    "batch": {"scale_rewards": "batch"},
    "none": {"scale_rewards": "none"},
    "gdpo": {"multi_objective_aggregation": "normalize_then_sum"},
}
WEIGHTS = (1.0, 0.5)


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a word for each id."""
    words = Tokenizer(models.WordLevel({"pad": PAD, "eos": EOS, **{f"w{n}": n for n in (1, *range(3, 19))}}, "w1"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="pad", eos_token="eos")


def model() -> Qwen2ForCausalLM:
    """Return a tiny Qwen2 with random weights."""
    torch.manual_seed(0)
    made = Qwen2ForCausalLM(Qwen2Config(**SHAPE, pad_token_id=PAD, bos_token_id=1, eos_token_id=EOS))
    with torch.no_grad():
        for weights in made.parameters():
            weights.add_(0.3 * torch.randn_like(weights))
    return made


def first(completions: list[str], **_: Any) -> list[float]:
    """Stand in for a reward; fixed numbers replace it."""
    return [0.0] * len(completions)


def second(completions: list[str], **_: Any) -> list[float]:
    """Stand in for a second reward."""
    return [0.0] * len(completions)


def trainer(folder: str, **settings: Any) -> GRPOTrainer:
    """Return TRL's trainer on the tiny model, on the CPU in float32, for one optimizer step of the whole batch."""
    arguments = GRPOConfig(
        output_dir=folder, report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False,
        per_device_train_batch_size=GROUPS * ROLLOUTS, num_generations=ROLLOUTS, max_completion_length=LIMIT,
        reward_weights=list(WEIGHTS), mask_truncated_completions=True, **settings,
    )  # fmt: skip
    path = f"{folder}/model"
    model().save_pretrained(path)
    return GRPOTrainer(
        model=path, reward_funcs=[first, second], args=arguments, processing_class=tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": ["w3 w4 w5"] * 8}),
    )  # fmt: skip


def arrays() -> dict[str, Any]:
    """Return fixed log-probs of the policy now and before the update, of the sampler and of the reference, and scores
    of two signals; one rollout has no score."""
    rng = np.random.default_rng(7)
    size = (GROUPS * ROLLOUTS, LONGEST)
    mask = np.arange(LONGEST) < np.array(LENGTHS)[:, None]
    logp = rng.uniform(-3, -0.2, size)
    noisy = {name: logp + rng.normal(0, spread, size) for name, spread in (("old", 0.25), ("ref", 0.4))}
    noisy["sampler"] = noisy["old"] + rng.normal(0, 0.25, size)
    scores = np.stack([rng.normal(0, 3, len(mask)), rng.uniform(0, 1, len(mask))], axis=1).round(3)
    scores[6] = np.nan
    found = {"logp": logp, **noisy}
    return {name: np.where(mask, a, 0).astype(np.float32).round(4) for name, a in found.items()} | {"scores": scores}


def batch(made: GRPOTrainer, data: dict[str, Any], *, vllm: bool) -> dict[str, Any]:
    """Return what TRL computes from the fixed completions before the loss: masks, advantages, correction weights."""
    made.use_vllm = vllm
    rows = [[5] * (n - 1) + [6 if row in TRUNCATED else EOS] for row, n in enumerate(LENGTHS)]
    sampled = [data["sampler"][row, :n].tolist() for row, n in enumerate(LENGTHS)] if vllm else None
    prompts = [[3, 4, 5]] * len(rows)
    made._generate = lambda _: (prompts, rows, None, [""] * len(rows), sampled, {}, None, None)
    made._calculate_rewards = lambda *_: torch.tensor(data["scores"], dtype=torch.float32)
    replies = iter([data["old"], data["ref"]] if vllm else [data["ref"]])
    made._get_per_token_logps_and_entropies = lambda *_, **__: (torch.tensor(next(replies)), None, None)
    made.model.train()
    return made._generate_and_score_completions([{"prompt": "w3 w4 w5"}] * len(rows))


def loss(made: GRPOTrainer, inputs: dict[str, Any], data: dict[str, Any]) -> tuple[float, list[list[float]]]:
    """Return TRL's loss of the fixed log-probs, and its gradient with respect to them."""
    logp = torch.tensor(data["logp"], requires_grad=True)
    made._get_per_token_logps_and_entropies = lambda *_, **__: (logp, torch.zeros_like(logp), None)
    made.current_gradient_accumulation_steps = 1
    value = made._compute_loss(made.model, inputs)
    value.backward()
    return value.item(), logp.grad.tolist()


def record_losses(folder: str) -> dict[str, Any]:
    """Return every loss with and without KL, with each correction, and with dropped sequences."""
    data, cases = arrays(), []
    plain = product(KINDS, (0.0,), (False,), CORRECTIONS, (None,))
    pulled = product(KINDS, (0.1,), (False, True), ("none", "token_truncate"), (None,))
    dropping = product(("grpo", "dapo"), (0.1,), (False,), ("none", "token_truncate"), (0.05,))
    for kind, beta, unbiased, correction, delta in [*plain, *pulled, *dropping]:
        settings = {"epsilon": 0.2, "epsilon_high": 0.2, **KINDS[kind], **CORRECTIONS[correction]}
        if correction != "none":
            settings["vllm_importance_sampling_mode"] = correction
        made = trainer(folder, beta=beta, use_bias_correction_kl=unbiased, off_policy_mask_threshold=delta, **settings)
        inputs = batch(made, data, vllm=correction != "none")
        inputs["old_per_token_logps"] = torch.tensor(data["old"])
        if beta:
            inputs["ref_per_token_logps"] = torch.tensor(data["ref"])
        if delta is not None:
            inputs["sampling_per_token_logps"] = torch.tensor(data["sampler"])
        value, gradient = loss(made, inputs, data)
        case = {
            "kind": kind, "eps_low": settings["epsilon"], "eps_high": settings["epsilon_high"], "beta": beta,
            "kl_unbiased": unbiased, "correction": correction,
            "correction_cap": settings.get("vllm_importance_sampling_clip_max"),
            "correction_floor": settings.get("vllm_importance_sampling_clip_min"), "off_policy_delta": delta,
            "metrics": {
                name: values[-1] for name, values in made._metrics["train"].items()
                if name.startswith(("clip_ratio", "cispo_clip_ratio", "kl", "sampling"))
            },
            "loss": value, "gradient": gradient,
        }  # fmt: skip
        cases.append(case)
        shared = {"advantages": inputs["advantages"].tolist(), "mask": inputs["completion_mask"].tolist()}
    stored = {name: data[name].tolist() for name in ("logp", "old", "sampler", "ref")}
    return {"trl": trl.__version__, "max_length": LIMIT, **stored, **shared, "cases": cases}


def record_advantages(folder: str) -> dict[str, Any]:
    """Return the advantages of the same scores for every scale."""
    data = arrays()
    found = {}
    for scale, settings in AGGREGATIONS.items():
        made = trainer(folder, beta=0.0, **settings)
        found[scale] = batch(made, data, vllm=False)["advantages"].reshape(GROUPS, ROLLOUTS).tolist()
    missing = [[None if np.isnan(value) else value for value in row] for row in data["scores"].tolist()]
    signals = np.array(missing, dtype=object).T.reshape(2, GROUPS, ROLLOUTS).tolist()
    return {"trl": trl.__version__, "scores": signals, "weights": WEIGHTS, "advantages": found}


def record_logprobs(folder: str) -> dict[str, Any]:
    """Return token log-probs and entropies of a tiny Qwen2 at a temperature, with its weights."""
    made = trainer(folder, beta=0.0, temperature=0.7)
    made.model.eval()
    prompt, rows = [3, 4, 5, 11], [[6, 7, 8, 9, EOS], [10, 12, EOS], [18, 17, 16, 15, 14]]
    width = max(map(len, rows))
    ids = torch.tensor([prompt + row + [PAD] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * (len(prompt) + len(row)) + [0] * (width - len(row)) for row in rows])
    with torch.no_grad():
        logps, entropies, _ = made._get_per_token_logps_and_entropies(
            made.model, ids, mask, width, compute_entropy=True
        )
    weights = {name: a.detach().tolist() for name, a in made.model.state_dict().items() if name != "lm_head.weight"}
    return {
        "trl": trl.__version__, "config": SHAPE, "weights": weights, "temperature": 0.7, "prompt": prompt,
        "completions": rows, "logps": logps.tolist(), "entropies": entropies.tolist(),
    }  # fmt: skip


def rounded(value: Any) -> Any:
    """Round numbers to eight digits, more than float32 has."""
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


def main() -> None:
    """Write the three files."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, record in (
            ("losses", record_losses),
            ("advantages", record_advantages),
            ("logprobs", record_logprobs),
        ):
            (GOLDEN / f"{name}.json").write_text(json.dumps(rounded(record(folder)), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
