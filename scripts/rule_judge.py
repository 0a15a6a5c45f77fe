"""A stand-in for a judge, to try `--judge` and the signals `judge` and `preference` without a model or a network: rules
behind an OpenAI-compatible endpoint.

    uv run python scripts/rule_judge.py --port 8077

It counts words where a model would read. Its scores show that the way from completions to tables works, and say nothing
about quality. For meaningful scores serve a real model (llama.cpp, vLLM, Ollama …) and set SMOLSUM_JUDGE_URL.

faithfulness   share of the summary's longer words, names and numbers that the post has too
coverage       share of the post's names, numbers and most frequent longer words that the summary has
conciseness    falls with the length beyond a quarter of the post, and with repeated trigrams
clarity        falls with an end in mid-sentence, with repeated words, and with repeated trigrams
Criteria of other tasks, and a rubric, are answered by clarity. Each is a whole number from 0 to 10, always the same for
the same text. A comparison of several texts gets their mean scores, from 0 to 1.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from statistics import fmean
from typing import Any

from smolsum.rewards.judge import NOTHING
from smolsum.tasks.text_metrics import repeated_trigrams
from smolsum.tasks.tldr.criteria import CLARITY, CONCISENESS, COVERAGE, CRITERIA, FAITHFULNESS

MODEL = "rules"
LONG = 5
"""least letters of a word that counts"""
KEY_WORDS = 6
"""frequent words of a post that a summary should have, besides names and numbers"""


def faithfulness(post: str, summary: str) -> float:
    """Score how much of the summary the post supports."""
    said, known = _telling(summary), _telling(post) | set(_words(post))
    return len(said & known) / len(said) if said else 0.0


def coverage(post: str, summary: str) -> float:
    """Score how many key words of the post the summary has."""
    key = _names(post) | {word for word, _ in Counter(w for w in _words(post) if len(w) >= LONG).most_common(KEY_WORDS)}
    return len(key & set(_words(summary))) / len(key) if key else 0.0


def conciseness(post: str, summary: str) -> float:
    """Score how short the summary is, and how little it repeats."""
    ratio = len(_words(summary)) / max(1, len(_words(post)))
    return 1.0 - min(1.0, max(0.0, ratio - 0.25) / 0.75) - 2 * repeated_trigrams(summary) if summary.strip() else 0.0


def clarity(_post: str, summary: str) -> float:
    """Score how well the summary forms sentences."""
    words = _words(summary)
    twice = sum(a == b for a, b in pairwise(words)) / max(1, len(words))
    ends = summary.rstrip().endswith((".", "!", "?"))
    return (1.0 if ends else 0.7) - 3 * twice - 2 * repeated_trigrams(summary) if words else 0.0


RULES: dict[str, Callable[[str, str], float]] = {
    FAITHFULNESS.name: faithfulness,
    COVERAGE.name: coverage,
    CONCISENESS.name: conciseness,
    CLARITY.name: clarity,
}


def judge(prompt: str) -> dict[str, Any] | None:
    """Return the answer to a prompt of G-Eval, of the signal `judge` or of `preference`, by the criteria whose steps it
    has; None for any other prompt. The signals may have other criteria, for which `clarity` stands."""
    names = [c.name for c in CRITERIA if c.steps[0] in prompt]
    if not names and "Actual Output" in prompt and (wanted := re.search(r"Reply with JSON:\s*(\{.*\})", prompt)):
        found = judge(f"{prompt}{CLARITY.steps[0]}")
        asked = re.findall(r'"(\w+)": \d', wanted[1])
        if found and isinstance(found["scores"], dict):
            return {"scores": dict.fromkeys(asked, found["scores"][CLARITY.name])}
        return found
    if not names:
        return None
    if shown := re.findall(r"<text number=(\d+)>\n(.*?)\n</text>", prompt, re.DOTALL):
        means = {int(n): fmean(_score(name, _source(prompt), text) for name in names) / 10 for n, text in shown}
        return {"scores": [{"text": n, "score": round(mean, 3)} for n, mean in means.items()]}
    if one := re.search(r"Actual Output:\n<text>\n(.*?)\n</text>", prompt, re.DOTALL):
        return {"scores": {name: _score(name, _source(prompt), one[1]) for name in names}}
    return {"score": _score(names[0], *_texts(prompt)), "reason": "counted by rules, not read"}


def _score(name: str, post: str, summary: str) -> int:
    return round(10 * min(1.0, max(0.0, RULES[name](post, "" if summary == NOTHING else summary))))


def _source(prompt: str) -> str:
    """Return the post that a signal's prompt shows."""
    found = re.search(r"Input:\n<source>\n(.*?)\n</source>", prompt, re.DOTALL)
    return found[1] if found else ""


def _texts(prompt: str) -> tuple[str, str]:
    """Return the post, empty where the prompt does not show it, and the summary."""
    case = prompt.rpartition("Test Case:\n")[2].rpartition("\nParameters:")[0]
    post, _, summary = case.rpartition("Actual Output:\n")
    return post.removeprefix("Input:\n").strip(), summary.strip()


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9$]+", text.lower())


def _names(text: str) -> set[str]:
    """Return numbers, and words with a capital inside a sentence."""
    return {word.lower() for word in re.findall(r"\$?\d[\d,.]*\d|\d|(?<=[a-z,] )[A-Z][a-z]+", text)}


def _telling(text: str) -> set[str]:
    return _names(text) | {word for word in _words(text) if len(word) >= LONG}


class Handler(BaseHTTPRequestHandler):
    """`GET /v1/models` and `POST /v1/chat/completions`, with the parts that a judge needs."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """List the one model."""
        self._send(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        """Answer one question."""
        try:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            content = body["messages"][-1]["content"]
            found = judge(content if isinstance(content, str) else content[0]["text"])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            self._send(400, {"error": {"message": f"not a chat request: {error}"}})
            return
        if found is None:
            self._send(400, {"error": {"message": "only questions about summaries are answered here"}})
            return
        message = {"role": "assistant", "content": json.dumps(found)}
        self._send(
            200,
            {
                "id": "rules",
                "object": "chat.completion",
                "model": MODEL,
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            },
        )

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests."""


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--port", type=int, default=8077, metavar="N")
    ThreadingHTTPServer.request_queue_size = 256  # of many that connect at once, the usual five would be let in
    server = ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler)
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
