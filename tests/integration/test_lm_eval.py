"""lm-evaluation-harness, as it is, measures the policy that a worker serves.

$SMOLSUM_LM_EVAL_PYTHON names the Python of an environment that has lm-eval[api] and transformers.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.serving import process

from smolsum.policy.load import load_policy

PYTHON = os.environ.get("SMOLSUM_LM_EVAL_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="SMOLSUM_LM_EVAL_PYTHON names no environment that has lm-eval"),
]
ROWS = [
    {"question": f"The car number {number} is", "choices": ["red", "blue and green", "a"], "label": 0, "answer": "x"}
    for number in range(3)
]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
metric_list: [{{metric: {metric}, aggregation: mean, higher_is_better: true}}]
"""
CHOICE = """output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
"""
TEXT = """output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n", "e"], max_gen_toks: 16, do_sample: false}
"""


def measured(folder: Path, model: str, url: str, tasks: str, *more: str) -> dict[str, list[dict[str, Any]]]:
    """The samples of each task, by lm-eval's own command."""
    out = folder / model
    command = [PYTHON, "-m", "lm_eval", "--model", model, "--tasks", tasks, "--include_path", str(folder)]
    arguments = ",".join([f"model=tiny,base_url={url},max_retries=1,num_concurrent=2", *more])
    command += ["--log_samples", "--output_path", str(out), "--model_args", arguments]
    command += ["--apply_chat_template"] if "chat" in model else []
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "OPENAI_API_KEY": "no"}
    done = subprocess.run(command, env=dict(os.environ) | offline, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    files = {name: next(out.rglob(f"samples_{name}_*.jsonl")) for name in tasks.split(",")}
    return {name: [json.loads(line) for line in path.read_text().splitlines()] for name, path in files.items()}


def test_likelihoods_and_texts_are_those_of_the_worker(tmp_path: Path) -> None:
    """Log-likelihoods of choices by /v1/completions with echo, texts up to stop texts by both interfaces: equal to what
    the worker says of the same tokens."""
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    for name, kind, metric in (("colours", CHOICE, "acc"), ("texts", TEXT, "exact_match")):
        (tmp_path / f"{name}.yaml").write_text(TASK.format(name=name, data=data, metric=metric) + kind)
    policy = load_policy("builtin:tiny", shapes_only=True)
    with process("--model", "tiny", log=tmp_path / "log") as (_, worker):
        base = f"{worker.base_url}/v1".replace("//v1", "/v1")
        tokenizer = f"tokenizer={policy.path}"
        found = measured(tmp_path, "local-completions", f"{base}/completions", "colours,texts", tokenizer)
        chatted = measured(tmp_path, "local-chat-completions", f"{base}/chat/completions", "texts")
        for sample in found["colours"]:
            question, choices = sample["doc"]["question"], sample["doc"]["choices"]
            for choice, (answer,) in zip(choices, sample["resps"], strict=True):
                assert float(answer[0]) == pytest.approx(likelihood(worker, policy, question, f" {choice}"), abs=1e-3)
        for sample in found["texts"]:
            body = {"prompt": sample["doc"]["question"], "max_tokens": 16, "temperature": 0, "stop": ["\n", "e"]}
            assert sample["resps"] == [[worker.post("/v1/completions", json=body).json()["choices"][0]["text"]]]
        for sample in chatted["texts"]:
            messages = [{"role": "user", "content": sample["doc"]["question"]}]
            body = {"messages": messages, "max_tokens": 16, "temperature": 0, "stop": ["\n", "e"]}
            answer = worker.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
            assert sample["resps"] == [[answer]]


def likelihood(worker: httpx.Client, policy: Any, question: str, choice: str) -> float:
    """The log-prob of a continuation, by the trainer's own route."""
    prompt, whole = policy.tokenizer.encode(question), policy.tokenizer.encode(question + choice)
    body = {"sequences": [{"prompt_ids": prompt, "completion_ids": whole[len(prompt) :]}]}
    return sum(worker.post("/v1/logprobs", json=body).json()["logprobs"][0])
