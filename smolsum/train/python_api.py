"""Training from Python, as `import smolsum` offers it: settings, prompts and whole runs without the command line."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smolsum.config.resolve import resolve
from smolsum.config.sections import Config
from smolsum.evaluate.prompt_encoding import encode_prompts
from smolsum.policy.load import Policy, encode_chat
from smolsum.tasks import TASKS
from smolsum.train.loop import train
from smolsum.train.progress import Progress
from smolsum.types import Prompt


def make_config(
    *,
    model: str | None = None,
    strategy: str | None = None,
    reward: str | None = None,
    presets: Sequence[str] = (),
    config_file: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Config:
    """Return the settings of a run, resolved as `smolsum train` does from the flags of the same names; `settings` are
    those of `--set`, by dotted key. Raises UsageError, with the nearest name, for an unknown key or a wrong value."""
    return resolve(
        TASKS, model=model, strategy=strategy, reward=reward, presets=presets, config_file=config_file,
        flags=settings or {},
    ).config  # fmt: skip


def load_prompts(policy: Policy, config: Config, split: str = "train") -> tuple[Prompt, ...]:
    """Return the prompts of a split (`train`, `validation` or `test`) of the configuration's task and data, in file
    order, encoded for the policy. Raises UsageError for data that cannot be read, and for prompts over
    `data.max_input_tokens`."""
    task = TASKS[config.task.name]
    return encode_prompts(policy, task, task.prompts.load(config, split), config)[0]


def make_prompt(policy: Policy, text: str, *, system: str = "", references: Sequence[str] = (), id: str = "") -> Prompt:
    """Return a prompt of a user's turn and perhaps a system message, encoded with the policy's chat template. Prompts
    that are sampled together need different ids; by default the text is the id."""
    messages = [{"role": role, "content": content} for role, content in (("system", system), ("user", text)) if content]
    return Prompt(id or text, tuple(messages), tuple(encode_chat(policy, messages)), tuple(references), {})


def train_run(config: Config, *, resume: str | None = None, quiet: bool = False) -> Path:
    """Train every stage of a configuration, as `smolsum train` does, and return the run's directory.

    With `resume`, finish the run of that name or path, whose settings `config` holds. Ctrl-C raises InterruptedRun once
    the step is saved. Progress goes to stderr; with `quiet` only warnings do.
    """
    begun: list[Path] = []
    with Progress(quiet=quiet) as progress:
        train(config, resume=resume, progress=progress, begun=begun.append)
    return begun[0]
