"""A process of its own that loads from a hub, as the client libraries read the hub's address when they are imported."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from support.training import PATIENCE_S

from smolsum.errors import SmolsumError, UsageError

PROGRAM = """
import json, sys, time
time.sleep = lambda seconds: None  # the libraries wait for half a minute between their retries
from smolsum.errors import SmolsumError
{code}
for line in sys.stdin:
    try:
        answer = load(**json.loads(line))
    except SmolsumError as error:
        kind = type(error).__name__
        answer = {{"error": kind, "code": error.exit_code, "message": error.message, "hint": error.hint}}
    print(json.dumps(answer), flush=True)
"""


class HubClient:
    """Calls the `load` that the code defines, and answers in JSON; its stderr is kept in a file. A context manager."""

    def __init__(self, code: str, environment: dict[str, str], stderr: Path) -> None:
        self.stderr = stderr
        with stderr.open("w") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM.format(code=code)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, text=True, env=environment,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=PATIENCE_S)

    def load(self, path: str, **settings: Any) -> dict[str, Any]:
        """What is found at this path."""
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps({"path": path, **settings}), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer, self.stderr.read_text()
        return dict(json.loads(answer))

    def refusal(self, path: str, *named: str, error: type[SmolsumError] = UsageError, **settings: Any) -> str:
        """The message about what cannot be loaded: an error of this class that names each of these, with a remedy."""
        answer = self.load(path, **settings)
        assert (answer.get("error"), answer.get("code")) == (error.__name__, error.exit_code), answer
        assert answer["hint"], answer
        said = f"{answer['message']}\n{answer['hint']}"
        assert not (missing := [name for name in named if name not in said]), f"{missing} is not named in: {said}"
        return str(answer["message"])
