"""A judge whose errors are known, behind an OpenAI-compatible endpoint.

    python benchmarks/cases/biased_judge.py --sensitivity 0.8 --specificity 0.9 --noise 1.5

It reads the truth in the text that it judges. "Text 17 is good." passes (a 9) with the chance of its sensitivity, "Text
17 is bad." with that of 1 - specificity, else gets a 2. "Text 17 is worth 6.4." gets 6.4 with normal noise, rounded.
What it draws depends on the seed, the text and how often that was asked before, so that `draw` says without any request
what the server answers. It returns log-probs where they are asked for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import threading
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import NormalDist
from typing import Any

PASS, FAIL, MOST = 9, 2, 10


@dataclass(frozen=True)
class KnownJudge:
    """How a judge errs."""

    sensitivity: float = 1.0
    specificity: float = 1.0
    noise: float = 0.0
    """standard deviation of a score around its text's worth, of 10"""
    seed: int = 0

    def chances(self, text: str) -> dict[int, float]:
        """The probability of each score of a text."""
        worth = re.search(r"is worth ([\d.]+)\.$", text)
        if not worth:
            passes = self.sensitivity if text.endswith("is good.") else 1 - self.specificity
            return {PASS: passes, FAIL: 1 - passes}
        curve = NormalDist(float(worth[1]), max(self.noise, 1e-9))
        ends = [-math.inf, *(score + 0.5 for score in range(MOST)), math.inf]
        below = [0.0, *map(curve.cdf, ends[1:-1]), 1.0]
        return {score: below[score + 1] - below[score] for score in range(MOST + 1)}

    def draw(self, text: str, before: int) -> int:
        """The score of a text that was asked for so many times before."""
        digest = hashlib.sha256(f"{self.seed} {text} {before}".encode()).digest()
        left = int.from_bytes(digest[:8]) / 2**64
        for score, chance in self.chances(text).items():
            left -= chance
            if left < 0:
                return score
        return score


def completion(judge: KnownJudge, text: str, before: int, *, logprobs: bool) -> dict[str, Any]:
    """The answer to a request."""
    score = judge.draw(text, before)
    content = json.dumps({"reason": "known", "score": score})
    choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    if logprobs:
        chances = sorted(judge.chances(text).items(), key=lambda one: -one[1])
        top = [{"token": str(s), "logprob": math.log(chance)} for s, chance in chances if chance > 0]
        head = {"token": content.rpartition(" ")[0] + " ", "logprob": 0.0, "top_logprobs": []}
        own = {"token": str(score), "logprob": math.log(judge.chances(text)[score]), "top_logprobs": top}
        choice["logprobs"] = {"content": [head, own, {"token": "}", "logprob": 0.0, "top_logprobs": []}]}
    usage = {"prompt_tokens": 300, "completion_tokens": 20, "total_tokens": 320}
    return {"id": "known", "object": "chat.completion", "choices": [choice], "usage": usage}


def serve(judge: KnownJudge) -> ThreadingHTTPServer:
    """A server on a free loopback port, which its caller starts."""
    asked, lock = Counter[str](), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._send({"data": [{"id": "known"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = re.findall(r"Text \d+ is .+?\.(?=\s|$)", body["messages"][-1]["content"])[-1]
            with lock:
                before = asked[text]
                asked[text] += 1
            self._send(completion(judge, text, before, logprobs=bool(body.get("logprobs"))))

        def _send(self, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    ThreadingHTTPServer.request_queue_size = 256
    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sensitivity", type=float, default=1.0)
    parser.add_argument("--specificity", type=float, default=1.0)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    server = serve(KnownJudge(**vars(parser.parse_args())))
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
