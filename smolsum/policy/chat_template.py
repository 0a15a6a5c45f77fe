"""The chat template of a model, or of the user's own, and what it gets from the training: a default system message, and
whether the model thinks first.

A policy answers as it was trained only under the system message of its training. So the checkpoints of a run carry that
message in their chat template, where transformers, mlx-lm and vLLM apply it; a system message of the user's own wins.
A policy that was trained without thinking (`model.thinking`) answers without it there too: templates that can think
read `enable_thinking`, which mlx-lm sets and others leave to its default.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from smolsum.errors import UsageError
from smolsum.types import Prompt

FILE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
"""the files that may hold a template"""
BEGIN = "{#- smolsum: the system message of the training, for a chat without one #}"
END = "{#- smolsum: end #}\n"
"""The line break is not rendered: transformers trims it, and what follows still begins its line."""
QUIET = f"{{#- smolsum: without thinking, as in the training #}}{{%- set enable_thinking = false %}}{END}"
"""what a template begins with that does not think"""
OWN = f"{{#- smolsum: a template of the user's own #}}{END}"
"""what a template begins with that replaces the model's"""
SWITCH = "enable_thinking"
"""the variable that templates with and without thinking read"""
ADDED = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
WITHOUT = "messages and messages[0]['role'] != 'system'"
"""the condition in a template that a chat has no system message"""
TRIAL = ({"role": "user", "content": "smolsum-user"}, {"role": "assistant", "content": "smolsum-answer"})
"""a chat that a template must render"""
EXAMPLE = "docs/own-models-and-data.md#base-models has one that works"
MARK = "smolsum-system"
"""a system message to see whether a template shows it"""


def shared_system(prompts: Sequence[Prompt]) -> str:
    """Return the system message that all prompts begin with; empty where they have none, or different ones."""
    found = {tuple(m["content"] for m in prompt.messages if m["role"] == "system") for prompt in prompts}
    return found.pop()[0] if len(found) == 1 and len(next(iter(found))) == 1 else ""


def plain_template(template: Any) -> Any:
    """Return a chat template, or several by name, without what smolsum added."""
    if isinstance(template, Mapping):
        return {name: plain_template(one) for name, one in template.items()}
    return ADDED.sub("", template).replace(QUIET, "").replace(OWN, "") if isinstance(template, str) else template


def no_template(model: str) -> UsageError:
    """Return the error for a model without a chat template."""
    return UsageError(
        f"{model} has no chat template; most base models have none",
        hint="use an instruction-tuned model (…-Instruct), or a template of your own: --set model.chat_template=FILE"
        " (doctor and serve-worker: --chat-template FILE)",
    )


def read_template(path: str) -> str:
    """Return the user's own chat template in a file. Raises UsageError for a file that is missing or no text."""
    try:
        return OWN + Path(path).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        hint = "give a file with a template in Jinja"
        raise UsageError(f"the chat template {path} cannot be read: {reason}", hint=hint) from error


def set_template(tokenizer: TokenizerWrapper, template: str, path: str) -> None:
    """Give a tokenizer a chat template from the file `path`. Raises UsageError for one that fails, or leaves out what
    the user or the assistant says."""
    tokenizer.chat_template = template
    try:
        shown = str(tokenizer.apply_chat_template(list(TRIAL), tokenize=False))
    except Exception as error:  # templates raise anything
        raise UsageError(f"the chat template {path} does not work: {error}", hint=EXAMPLE) from error
    for turn in TRIAL:
        if turn["content"] not in shown:
            raise UsageError(f"the chat template {path} leaves out what the {turn['role']} says", hint=EXAMPLE)


def closing_ids(tokenizer: TokenizerWrapper) -> list[int]:
    """Return the tokens that the chat template puts after what an assistant says last; none where it shows no such
    chat."""
    try:
        _, said, after = str(tokenizer.apply_chat_template(list(TRIAL), tokenize=False)).rpartition(
            TRIAL[-1]["content"]
        )
    except Exception:  # templates raise anything
        return []
    return list(tokenizer.encode(after, add_special_tokens=False)) if said else []


def template_of(checkpoint: Path, setting: str) -> str:
    """Return the file with the template that a checkpoint was trained with, where `model.chat_template` named one of
    the user's own, which may have changed since; empty otherwise."""
    return str(checkpoint / FILE) if setting else ""


def is_quiet(template: Any) -> bool:
    """Return whether a chat template, or the default one of several, was made to answer without thinking."""
    text = template.get("default", "") if isinstance(template, Mapping) else template
    return isinstance(text, str) and QUIET in text


def is_changed(template: Any) -> bool:
    """Return whether a chat template is another than the model's: the user's own, or made not to think."""
    return OWN in str(template) or is_quiet(template)


def without_thinking(template: Any) -> Any:
    """Return a chat template, or several by name, that answers without thinking. Raises ValueError for one that has no
    such switch."""
    if isinstance(template, Mapping):
        return {name: without_thinking(one) for name, one in template.items()}
    if SWITCH not in template:
        raise ValueError(f"the chat template does not read {SWITCH}")
    return template if QUIET in template else QUIET + template


def added_system(template: Any) -> str:
    """Return the system message that `with_system` gave a chat template, or the default one of several by name; empty
    where it gave none."""
    text = template.get("default", "") if isinstance(template, Mapping) else template
    added = ADDED.search(text) if isinstance(text, str) else None
    if added is None:
        return ""
    key = "'content': "
    return str(json.JSONDecoder().raw_decode(added[0], added[0].index(key) + len(key))[0])


def with_system(template: str, system: str, *, accepts_system: bool) -> str:
    """Return a chat template that puts `system` before the messages of a chat without a system message or, where the
    template does not accept one, in front of the first message. Replaces what an earlier call added."""
    # Jinja reads the escapes of JSON; others than ASCII characters stay as they are
    text = json.dumps(system, ensure_ascii=False)
    if accepts_system:
        ways = {f"if {WITHOUT}": f"[{{'role': 'system', 'content': {text}}}] + messages"}
    else:
        own = _folded("messages[0]['content']", "messages[1:]")
        ways = {f"if {WITHOUT}": _folded(text, "messages"), "elif messages|length > 1": own}
    changed = "".join(f"{{%- {way} %}}{{%- set messages = {chat} %}}" for way, chat in ways.items()) + "{%- endif %}"
    return f"{BEGIN}{changed}{END}{plain_template(template)}"


def _folded(system: str, chat: str) -> str:
    """Return the Jinja expression for a chat whose first turn begins with the system message, as prompts are encoded
    for a template without a system role."""
    first = f"{{'role': {chat}[0]['role'], 'content': {system} + '\\n\\n' + {chat}[0]['content']}}"
    return f"[{first}] + {chat}[1:]"


def renders_system(tokenizer: TokenizerWrapper, *, plain: bool = False) -> bool:
    """Return whether the tokenizer's chat template (`plain`: without what smolsum added) renders a system message: some
    raise an error, and some leave it out."""
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        template = template.get("default")
    chat, asked = [{"role": "system", "content": MARK}, {"role": "user", "content": "b"}], {"tokenize": False}
    if plain:
        asked["chat_template"] = plain_template(template)
    try:
        return MARK in str(tokenizer.apply_chat_template(chat, add_generation_prompt=True, **asked))
    except Exception:  # templates raise anything
        return False


def write_template(tokenizer: TokenizerWrapper, system: str, folder: Path) -> None:
    """Make the tokenizer files in the folder render chats as in the training, wherever they hold the chat template:
    with `system` (if any) for a chat without a system message, and without thinking if `tokenizer` has that. A folder
    without a template, or with another one than the user's own, gets `chat_template.jinja`; where there is nothing to
    change, nothing is written."""
    quiet, accepted, held = is_quiet(tokenizer.chat_template), renders_system(tokenizer, plain=True), False

    def changed(template: str) -> str:
        return _trained(template, system, quiet=quiet, accepts_system=accepted)

    if OWN in str(tokenizer.chat_template):
        _replace_template(folder, trained_template(tokenizer, system))
        return
    if not (system or quiet):
        return
    if (folder / FILE).is_file():
        template = (folder / FILE).read_text(encoding="utf-8")
        (folder / FILE).write_text(changed(template), encoding="utf-8")
        held = True
    if (folder / CONFIG).is_file():
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        named = config.get("chat_template")
        if isinstance(named, str):
            config["chat_template"] = changed(named)
        for one in named if isinstance(named, list) else ():
            if one["name"] == "default":
                one["template"] = changed(one["template"])
        if named:
            (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            held = True
    if not held and isinstance(tokenizer.chat_template, str):
        (folder / FILE).write_text(changed(tokenizer.chat_template), encoding="utf-8")


def _replace_template(folder: Path, template: str) -> None:
    """Write a template to the folder, and remove that of its settings, which llama.cpp takes before the file's."""
    (folder / FILE).write_text(template, encoding="utf-8")
    if (folder / CONFIG).is_file():
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if config.pop("chat_template", None) is not None:
            (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def trained_template(tokenizer: TokenizerWrapper, system: str) -> str:
    """Return the tokenizer's chat template, or the default one of several, as `write_template` writes it."""
    template = tokenizer.chat_template
    text = template.get("default", "") if isinstance(template, Mapping) else str(template)
    return _trained(text, system, quiet=is_quiet(template), accepts_system=renders_system(tokenizer, plain=True))


def _trained(template: str, system: str, *, quiet: bool, accepts_system: bool) -> str:
    found = with_system(template, system, accepts_system=accepts_system) if system else plain_template(template)
    return QUIET + found if quiet else str(found)
