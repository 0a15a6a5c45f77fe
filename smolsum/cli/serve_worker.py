"""`smolsum serve-worker`."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from smolsum import console
from smolsum.cli.options import VllmPythonFlag
from smolsum.errors import UsageError
from smolsum.rollout.worker.engines.vllm_setup import EXAMPLE, AddedFlags


def serve_worker(
    vllm_flags: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- FLAGS OF VLLM", help="Flags for vLLM's own server, behind --; engine vllm only."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(metavar="MODEL", help="Preset (tiny, tiny-lfm, qwen, lfm), local directory, GGUF file or hub id."),
    ] = "tiny",
    engine: Annotated[
        Literal["mlx", "vllm"],
        typer.Option(metavar="ENGINE", help="mlx: in this process; vllm: a vLLM server in a separate process."),
    ] = "mlx",
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; any but loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0: any free one.")] = 8100,
    token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="Bearer token that clients must send.  [default: $SMOLSUM_WORKER_TOKEN]"),
    ] = None,
    vllm_python: VllmPythonFlag = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        typer.Option(metavar="TYPE", help="Type of the weights, as the trainer's: auto, float32, bfloat16, float16."),
    ] = "auto",
    quantize: Annotated[
        int, typer.Option(metavar="BITS", help="As the trainer's model.quantize: 0, 4 or 8; engine mlx only.")
    ] = 0,
    lora_rank: Annotated[
        int, typer.Option(metavar="N", min=0, max=512, help="As the trainer's lora.rank, 0: none; engine vllm only.")
    ] = 0,
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="As the trainer's model.chat_template.")
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=2, help="Tokens of prompt and completion.  [default: what the model allows, to 4096]"
        ),
    ] = None,
    work_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The only folder that is written to.  [default: a temporary one]")
    ] = None,
) -> None:
    """Sample rollouts for a trainer on another machine; print the URL once ready.

    \b
    On this machine alone:
      smolsum serve-worker --model tiny --port 0
    \b
    With vLLM's own flags:
      smolsum serve-worker --engine vllm -- --gpu-memory-utilization 0.5
    """
    for flag, value, needed in (("--quantize", quantize, "mlx"), ("--lora-rank", lora_rank, "vllm")):
        if value and engine != needed:
            raise UsageError(f"{flag} is for --engine {needed}", hint=f"leave {flag} out, or --engine {needed}")
    if vllm_flags and engine != "vllm":
        raise UsageError(f"{vllm_flags[0]!r} is for vLLM", hint=f"leave it out, or {EXAMPLE}")
    added = AddedFlags(tuple(vllm_flags or ()))
    if quantize not in (0, 4, 8):
        raise UsageError(f"--quantize {quantize}: 0, 4 or 8 bits", hint="--quantize 4")
    from smolsum.config.resolve import model_path
    from smolsum.rollout.worker.http_server import listen
    from smolsum.tasks import TASKS

    path = model_path(model, TASKS)
    if Path(path).exists():  # vLLM's process has another working directory
        path = str(Path(path).absolute())
    secret = token if token is not None else os.environ.get("SMOLSUM_WORKER_TOKEN") or None
    listener = listen(host, port, secret)
    from smolsum.rollout.worker.server import Settings, serve  # loads MLX

    # absolute as the path above, but not by resolve(): Python finds its environment by the link
    python = vllm_python or sys.executable
    if os.sep in python:
        python = str(Path(python).expanduser().absolute())
    work_dir = work_dir and work_dir.absolute()
    settings = Settings(
        model=model,
        path=path,
        engine=engine,
        host=host,
        token=secret,
        dtype=dtype,
        quantize=quantize,
        chat_template=str(chat_template.absolute()) if chat_template else "",
        max_model_len=max_model_len,
        vllm_python=python,
        lora_rank=lora_rank,
        work_dir=work_dir,
        added=added,
    )
    serve(settings, listener, console.data)
