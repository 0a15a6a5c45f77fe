"""A judge for tests: a real OpenAI-compatible server on a loopback port, which can also misbehave.

As a program (`python tests/judge_server.py --latency 0.5`) it prints its base URL and serves until it is killed.
"""

import argparse
import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODELS = ("judge-a", "judge-b", "gpt-5-mini-2025-08-07")
"""the last one has a known price"""
KEY = "a-key"

Reply = tuple[int, dict[str, str], bytes]
Mischief = Callable[[str, int], Reply | None]
"""what a request gets in place of an answer, by its prompt and how often that was asked before; None: an answer"""


@dataclass
class JudgeServer:
    """What the server does, and what it was asked."""

    latency_s: float = 0.0
    mischief: Mischief = lambda prompt, before: None
    key: str = ""
    structured: bool = True
    asked: list[tuple[str, str]] = field(default_factory=list)
    """judge and prompt of every request for a judgement"""
    chats: list[list[dict[str, Any]]] = field(default_factory=list)
    """the messages of every such request"""
    authorizations: set[str] = field(default_factory=set)
    """what requests of any kind had in that header; "" without one"""
    connections: int = 0
    url: str = ""
    stopped: threading.Event = field(default_factory=threading.Event)

    def prompts(self) -> Counter[str]:
        """How often each prompt was asked."""
        return Counter(prompt for _, prompt in self.asked)

    def recover(self) -> None:
        """Answer everything from now on, and forget what was asked."""
        self.mischief = lambda prompt, before: None
        self.asked.clear()


def score_of(model: str, prompt: str) -> int:
    """The score from 0 to 10 that a judge gives: a function of the completion and the steps alone."""
    shown = re.search(r"Actual Output:\n(.*?) \n", prompt, re.S)
    steps = prompt.split("Test Case:")[0]
    digest = hashlib.sha256(f"{model}{steps}{shown[1] if shown else ''}".encode()).digest()
    return digest[0] % 11


def answer(content: str, status: int = 200, *, tokens: int = 50, **headers: str) -> Reply:
    """A chat completion with this content, said to have this many tokens."""
    body = {
        "id": "x",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 900, "completion_tokens": tokens, "total_tokens": 900 + tokens},
    }
    return status, headers, json.dumps(body).encode()


def failure(status: int, message: str, code: str = "", **headers: str) -> Reply:
    """An error as OpenAI words it."""
    body = json.dumps({"error": {"message": message, "code": code}}).encode()
    return status, {key.replace("_", "-"): value for key, value in headers.items()}, body


class _Server(ThreadingHTTPServer):
    """Room for all connections that a client opens at once: of those beyond the usual five some are reset."""

    request_queue_size = 256
    daemon_threads = True


@contextmanager
def serving(**settings: Any) -> Iterator[JudgeServer]:
    """A judge that answers while the block runs."""
    judge = JudgeServer(**settings)
    server = _Server(("127.0.0.1", 0), _handler(judge))
    judge.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield judge
    finally:
        judge.stopped.set()  # a request that hangs lets go
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(judge: JudgeServer) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            with lock:
                judge.connections += 1

        def do_GET(self) -> None:
            if not self._may():
                return
            self._send((200, {}, json.dumps({"data": [{"id": model} for model in MODELS]}).encode()))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            content = body["messages"][-1]["content"]
            prompt = content if isinstance(content, str) else content[0]["text"]
            if not self._may():
                return
            if body["model"] not in MODELS:
                self._send(failure(404, f"The model {body['model']} does not exist", "model_not_found"))
                return
            if "response_format" in body and not judge.structured:
                self._send(failure(400, "response_format is not supported here"))
                return
            with lock:
                before = sum(p == prompt and m == body["model"] for m, p in judge.asked)
                judge.asked.append((body["model"], prompt))
                judge.chats.append(body["messages"])
            time.sleep(judge.latency_s)
            verdict = json.dumps({"reason": "as the steps say", "score": score_of(body["model"], prompt)})
            self._send(judge.mischief(prompt, before) or answer(verdict))

        def _may(self) -> bool:
            with lock:
                judge.authorizations.add(self.headers.get("Authorization", ""))
            allowed = not judge.key or self.headers.get("Authorization") == f"Bearer {judge.key}"
            if not allowed:
                self._send(failure(401, "Incorrect API key provided"))
            return allowed

        def _send(self, reply: Reply) -> None:
            status, headers, body = reply
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                pass  # the other side has gone

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=0.0, metavar="S")
    arguments = parser.parse_args()
    with serving(latency_s=arguments.latency) as running:
        print(running.url, flush=True)
        threading.Event().wait()
