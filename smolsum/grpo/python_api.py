"""Training from Python, as `import smolsum` offers it: settings, prompts and whole runs without the command line."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from smolsum.config.resolve import resolve
from smolsum.config.sections import Config
from smolsum.grpo.loop import train as run_training
from smolsum.grpo.progress import Progress
from smolsum.policy.load import Policy, encode_chat
from smolsum.results.evaluate.prompt_encoding import encode_prompts
from smolsum.runs.paths import open_run
from smolsum.tasks import TASKS
from smolsum.tasks.data_files import store_data
from smolsum.tasks.plugins import require_plugins, signal_of, use_plugins
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


def train(
    model: str = "tiny",
    *,
    data: Any = None,
    rewards: Sequence[str | Callable[..., Any]] | Mapping[str | Callable[..., Any], float] = (),
    target: int | str | None = None,
    strategy: str | None = None,
    settings: Mapping[str, Any] | None = None,
    plugins: Sequence[str] = (),
    name: str = "",
    runs_dir: str | Path = "runs",
    resume: str | None = None,
    quiet: bool = False,
) -> Path:
    """Train a model and return the run's directory, as `smolsum train` does with the flags of the same names.

    `data` is a path or hub id, a list of dicts, a polars frame or a `datasets.Dataset`, or a mapping from splits to
    these; where validation or test rows are missing, some of the training rows take their place. `rewards` are names of
    signals and functions with TRL's signature (`smolsum.reward` names and describes them), perhaps with weights, which
    are multiples of those that the strategy has.
    `target` is the number of tokens of a summary, or as a text the targets that prompts ask for (`16-128`); `settings`
    are those of `--set`, `plugins` those of `--plugin`. With `resume` the run of that name or path continues: pass the
    same functions and plugins again, and nothing else.
    Raises SmolsumError for everything that a user can fix; Ctrl-C is as in `train_run`.
    """
    weights = dict(rewards) if isinstance(rewards, Mapping) else dict.fromkeys(rewards, 1.0)
    functions = [one for one in weights if not isinstance(one, str)]
    use_plugins(plugins, functions)
    if resume is not None:
        run = open_run(resume, Path(runs_dir))
        require_plugins(run)
        config = resolve(TASKS, config_file=run.config, flags={"run.dir": str(run.root.parent)}).config
        return train_run(config, resume=resume, quiet=quiet)
    signals = {one if isinstance(one, str) else signal_of(one): weight for one, weight in weights.items()}
    flags: dict[str, Any] = {"run.dir": str(runs_dir), "run.name": name, "run.plugins": ",".join(plugins)}
    flags |= {} if data is None else {"data.path": store_data(data, Path(runs_dir))}
    if target is not None:
        flags |= {"task.targets" if isinstance(target, str) else "task.target_tokens": target}
    flags |= settings or {}
    given: dict[str, Any] = {"model": model, "strategy": strategy, "reward": "-".join(signals) or None}
    stages = make_config(**given, settings=flags).stages
    flags |= {
        f"stages.{stage}.rewards.{signal}": weight * one.rewards[signal]
        for signal, weight in signals.items()
        if weight != 1.0
        for stage, one in stages.items()
        if signal in one.rewards
    }
    return train_run(make_config(**given, settings=flags), quiet=quiet)


def train_run(config: Config, *, resume: str | None = None, quiet: bool = False) -> Path:
    """Train every stage of a configuration, as `smolsum train` does, and return the run's directory.

    With `resume`, finish the run of that name or path, whose settings `config` holds. Ctrl-C raises InterruptedRun once
    the step is saved. Progress goes to stderr; with `quiet` only warnings do.
    """
    begun: list[Path] = []
    with Progress(quiet=quiet) as progress:
        run_training(config, resume=resume, progress=progress, started=begun.append)
    return begun[0]
