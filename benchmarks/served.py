"""A trained model, exported and served by others: which greedy answers are those of our own evaluation.

    uv run python benchmarks/served.py RUN --posts 20 --vllm-python ~/vllm/bin/python --llama-python ~/llama/bin/python

The run's last checkpoint is exported in the hub's layout and as GGUF (F16). Each server gets the posts of the test
split as chats with the user's message alone, since the exported template has the system message of the training. A
server whose Python is not named is left out. Texts are compared without outer white space; where one differs, the
table has the share of its characters up to there.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from smolsum.files import read_jsonl
from smolsum.grpo.resume import settings_of
from smolsum.tasks import TASKS

START_S = 600
LLAMA_CPP = "llama.cpp (F16)"
FIELDS = {LLAMA_CPP: {"repeat_penalty": 1.0}}
"""of requests, by server: without, llama.cpp's makes what was said before less likely (1.1)"""


def smolsum(*arguments: object) -> str:
    """Run a command of smolsum; return its last line."""
    command = [sys.executable, "-m", "smolsum", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]


@contextmanager
def serving(command: list[str], port: int, log: Path) -> Iterator[httpx.Client]:
    """Start a server; yield a client once it lists its models."""
    with log.open("w") as out:
        # a GiB of cache is enough, where vLLM would take a part of all memory
        surroundings = {"VLLM_CPU_KVCACHE_SPACE": "1", **os.environ}
        server = subprocess.Popen(command, stdout=out, stderr=out, env=surroundings)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", timeout=600) as client:
            end = time.monotonic() + START_S
            while True:
                try:
                    if client.get("/models").status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                if server.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{command[0]} did not start:\n{log.read_text()[-2000:]}")
                time.sleep(1)
            yield client
    finally:
        server.terminate()
        server.wait()


def free_port() -> int:
    """A port that no server has."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def answers(client: httpx.Client, posts: list[str], model: str, limit: int, more: dict[str, float]) -> list[str]:
    """The greedy answer to each post, with more fields in each request."""
    texts = []
    for post in posts:
        body = {"model": model, "messages": [{"role": "user", "content": post}], "temperature": 0, "max_tokens": limit}
        answer = client.post("/chat/completions", json=body | more)
        answer.raise_for_status()
        texts.append(answer.json()["choices"][0]["message"]["content"].strip())
    return texts


def same_until(one: str, two: str) -> int:
    """How many characters two texts begin alike with."""
    return next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def main() -> None:
    """Export, serve, compare, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of the task tldr, or a checkpoint")
    parser.add_argument("--posts", type=int, default=20)
    parser.add_argument("--skip", nargs="+", default=[], help="servers by their names in the table")
    parser.add_argument("--vllm-python", type=Path)
    parser.add_argument("--llama-python", type=Path)
    arguments = parser.parse_args()
    config = settings_of(str(arguments.run), str(arguments.run.parent), {})
    limit = config.sampling.max_new_tokens
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        smolsum("export", arguments.run, work / "model")
        smolsum("export", arguments.run, work / "gguf", "--format", "gguf", "--gguf-type", "F16")
        sets = [
            f"data.path={config.data.path}",
            f"data.test_rows={arguments.posts}",
            f"sampling.max_new_tokens={limit}",
        ]
        flags = [f"--set={text}" for text in sets]
        folder = smolsum("eval", work / "model", *flags, "--runs-dir", work, "--name", "ours")
        ours = read_jsonl(Path(folder) / "generations.jsonl")
        posts = {one.id: one.source for one in TASKS["tldr"].prompts.load(config, "test").examples}
        (gguf,) = (work / "gguf").glob("*.gguf")
        port = free_port()
        at = ["--port", str(port)]
        model = str(work / "model")
        servers = {
            "smolsum serve-worker": [sys.executable, "-m", "smolsum", "serve-worker", "--model", model, *at],
            "mlx_lm.server": [sys.executable, "-m", "mlx_lm.server", "--model", model, *at],
        }
        if arguments.vllm_python:
            servers["vLLM"] = [str(arguments.vllm_python), "-m", "vllm.entrypoints.openai.api_server", "--model", model,
                               "--dtype", "float32", "--max-model-len", "2048", *at]  # fmt: skip
        if arguments.llama_python:
            servers[LLAMA_CPP] = [str(arguments.llama_python), "-m", "llama_cpp.server", "--model", str(gguf),
                                          "--n_ctx", "2048", *at]  # fmt: skip
        print("| server | equal answers | characters up to the first difference |\n| --- | --- | --- |")
        for title, command in servers.items():
            if title in arguments.skip:
                continue
            with serving(command, port, work / "log") as client:
                # mlx_lm.server takes the path of the model, and lists only what the hub's cache has
                asked = model if title == "mlx_lm.server" else client.get("/models").json()["data"][0]["id"]
                theirs = answers(client, [posts[row["id"]] for row in ours], asked, limit, FIELDS.get(title, {}))
            pairs = [(row["text"].strip(), text) for row, text in zip(ours, theirs, strict=True)]
            shares = [same_until(one, two) / max(1, len(one)) for one, two in pairs if one != two]
            same = len(pairs) - len(shares)
            print(f"| {title} | {same} of {len(pairs)} | {', '.join(f'{share:.0%}' for share in shares)} |", flush=True)


if __name__ == "__main__":
    main()
