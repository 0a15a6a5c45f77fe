"""A server that stands for vLLM with vllm-metal: its API behind a Unix socket, a model of mlx-lm whose attention is
wrapped as vllm-metal wraps it, and its sampler. Nobody who builds smolsum has a Mac.

What it repeats is in the sources of vllm-metal: attention/impls/sdpa_wrapper.py and patching.py (tag
v0.3.0.dev20260822182524), shortconv.py (#598), v1/model_runner.py (`self._sampler = Sampler()`,
`prompt_logprobs_dict={}` before #694). As a program it is the server; `python_of` makes the Python that starts it.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import smolsum.policy

# isort: split
import mlx.core as mx
import mlx.nn as nn
import uvicorn
from mlx_lm.utils import load_model
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import smolsum.rollout.worker

sys.path.insert(0, str(Path(smolsum.rollout.worker.__file__).with_name("vllm_plugin")))
from smolsum_vllm import WeightsExtension  # as vLLM finds it

ATTENTION = ("self_attn", "linear_attn", "attention", "conv", "mixer")
"""`_ATTN_ATTR_NAMES`"""


class Paged(nn.Module):
    """Holds a layer's attention or convolution, and caches, as plain attributes, which MLX does not see."""

    def __init__(self, inner: nn.Module, held_as: str) -> None:
        super().__init__()
        object.__setattr__(self, "_name", held_as)
        object.__setattr__(self, held_as, inner)
        object.__setattr__(self, "_mk_layer_idx", 0)
        object.__setattr__(self, "_mk_kv_cache", SimpleNamespace(key=mx.zeros(3)))

    def __call__(self, *given: Any, **named: Any) -> Any:
        return getattr(self, self._name)(*given, **named)


class Sampler:
    """Stands for vLLM's sampler, which takes the mode that vllm-metal does not give it."""

    def __init__(self, logprobs_mode: str = "raw_logprobs") -> None:
        self.logprobs_mode = logprobs_mode


class Stubborn(Sampler):
    """One that does not do as its mode says."""

    def __init__(self, logprobs_mode: str = "raw_logprobs") -> None:
        super().__init__("raw_logprobs")


class MetalWorker(WeightsExtension):
    """Stands for vllm-metal's worker; `wrapped` names the attribute of its wrappers, empty for none."""

    def __init__(self, folder: Path, wrapped: str = "") -> None:
        self.model, _ = load_model(folder)
        self.get_model = lambda: self.model
        self.model_config = SimpleNamespace(logprobs_mode="processed_logprobs")
        self.model_runner = SimpleNamespace(_sampler=Sampler())
        for layer in self.model.layers if wrapped else ():
            name = next(name for name in ATTENTION if name in layer)
            setattr(layer, name, Paged(layer[name], wrapped))


def python_of(folder: Path, *, metal: str = "0.30.0", fault: str = "") -> str:
    """A Python that has vLLM with this vllm-metal; `fault` as in `serve`."""
    program = folder / "python"
    found = json.dumps({"vllm": "0.30.0+cpu", "vllm-metal": metal})
    program.write_text(
        f"#!/bin/sh\n[ \"$1\" = -I ] && echo '{found}' && exit\n"
        f'exec {sys.executable} {__file__} --fault "{fault}" "$@"\n'
    )
    program.chmod(0o755)
    return str(program)


def serve() -> None:
    """Serve until it is ended. Its flags are in argv.json of the folder that it runs in."""
    parser = argparse.ArgumentParser()
    for flag in ("--uds", "--model", "--dtype", "--fault", "-m"):
        parser.add_argument(flag)
    known, _ = parser.parse_known_args()
    Path("argv.json").write_text(json.dumps(sys.argv))
    worker = MetalWorker(Path(known.model), "_inner")
    for layer in worker.model.layers:
        for part in [layer, *(vars(one)["_inner"] for one in layer.values() if isinstance(one, Paged))]:
            part.set_dtype(getattr(mx, known.dtype))
    worker.model.set_dtype(getattr(mx, known.dtype))
    if known.fault == "sampler":
        worker.model_runner._sampler = Stubborn()
    if known.fault == "hidden":  # deeper than smolsum looks
        wrapper = worker.model.layers[0].self_attn
        object.__setattr__(wrapper, "_inner", [wrapper._inner])

    def answer(work: Callable[[Any], Any]) -> Any:
        async def run(request: Request) -> Response:
            try:
                return JSONResponse(work(await request.json() if await request.body() else None))
            except Exception as error:
                return JSONResponse({"error": {"message": repr(error)}}, 500)

        return run

    routes = [
        Route("/health", answer(lambda _: {})),
        Route("/reset_prefix_cache", answer(lambda _: {}), methods=["POST"]),
        Route("/collective_rpc", answer(lambda body: call(worker, body)), methods=["POST"]),
        Route("/v1/completions", answer(lambda body: complete(worker, body, known.fault)), methods=["POST"]),
    ]
    uvicorn.run(Starlette(routes=routes), uds=known.uds, log_level="warning")


def call(worker: MetalWorker, body: Any) -> Any:
    """The answer to a call of the plugin."""
    return {"results": [getattr(worker, body["method"])(*body["args"])]}


def complete(worker: MetalWorker, body: Any, fault: str) -> Any:
    """The answer to a completion: tokens with log-probs as the sampler's mode has them, and those of the prompt."""
    ids, temperature, wanted = list(body["prompt"]), body["temperature"] or 1e-6, body.get("logprobs", 0)
    choice: dict[str, Any] = {"token_ids": [], "finish_reason": "length", "prompt_logprobs": None}
    if "prompt_logprobs" in body:
        rows = log_softmax(worker.model(mx.array([ids]))[0])
        scored = [{str(i): {"logprob": rows[n, i].item()}} for n, i in enumerate(ids[1:])]
        choice["prompt_logprobs"] = [None] if fault == "prompt" else [None, *scored]
    token_logprobs, top_logprobs = [], []
    mx.random.seed(body.get("seed", 0))
    for _ in range(body["max_tokens"]):
        logits = worker.model(mx.array([ids]))[0, -1]
        cool = log_softmax(logits / temperature)
        shown = cool if worker.model_runner._sampler.logprobs_mode == "processed_logprobs" else log_softmax(logits)
        token = int(mx.random.categorical(cool).item())
        best = mx.argsort(-shown)[:wanted].tolist()
        ids.append(token)
        choice["token_ids"].append(token)
        token_logprobs.append(shown[token].item())
        top_logprobs.append({f"token_id:{i}": shown[i].item() for i in best})
        if token in body.get("stop_token_ids", ()):
            choice["finish_reason"] = "stop"
            break
    choice["logprobs"] = {"token_logprobs": token_logprobs, "top_logprobs": top_logprobs}
    return {"choices": [choice]}


def log_softmax(logits: mx.array) -> mx.array:
    """In float32."""
    logits = logits.astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


if __name__ == "__main__":
    serve()
