"""The default system message of a checkpoint's chat template: for chats without one, and no others."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.calls import Call
from support.refusals import assert_refused, refuses
from support.serving import process
from support.training import arguments, make_data
from transformers import AutoTokenizer

from smolsum.cli.main import main
from smolsum.config.sections import LoraConfig
from smolsum.policy.chat_template import added_system, plain_template, shared_system, with_system
from smolsum.policy.export import export_adapters
from smolsum.policy.load import encode_chat, load_policy
from smolsum.policy.weights import save_trained, tokenizer_digest
from smolsum.tasks.tldr.settings import TldrConfig
from smolsum.types import Prompt

SYSTEM = 'Say "it"\nin 5 \\ words {{ x }} {% if %}\'s end %} — 🙂'
USER = {"role": "user", "content": "A post."}
TURNS = [USER, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "More."}]
ACCEPTING = {
    "chatml": "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "own default": "{%- if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{%- else %}You are Q."
    "{%- endif %}\n{%- for m in messages %}{%- if m.role != 'system' %}[{{ m.content }}]{%- endif %}{%- endfor %}",
    "reassigns": "{{ bos_token }}{%- if messages[0]['role'] == 'system' %}{%- set s = messages[0]['content']|trim %}"
    "{%- set messages = messages[1:] %}{%- else %}{%- set s = '' %}{%- endif %}"
    "S:{{ s }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}",
    "blank start": "\n  {% for m in messages %}\n    {{ m['content'] }}\n  {% endfor %}\n",
}
REFUSING = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}{% endfor %}"
)
LEAVING_OUT = (
    "{% for m in messages %}{% if m['role'] != 'system' %}<{{ m['role'] }}>{{ m['content'] }}{% endif %}{% endfor %}"
)
TINY = "builtin:tiny"


def rendered(template: str, messages: list[dict[str, str]]) -> str:
    tokenizer = load_policy(TINY, shapes_only=True).tokenizer
    text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True)
    return str(text)


@pytest.mark.parametrize("name", ACCEPTING)
@pytest.mark.parametrize("system", ["Keep it short.", SYSTEM])
def test_a_chat_without_a_system_message_gets_the_default(name: str, system: str) -> None:
    """As if it had brought it; a chat with another one stays as it was, and what was added can be replaced."""
    plain, own = ACCEPTING[name], [{"role": "system", "content": "Mine."}]
    changed = with_system(plain, system, accepts_system=True)
    for chat in ([USER], TURNS):
        assert rendered(changed, chat) == rendered(plain, [{"role": "system", "content": system}, *chat])
        assert rendered(changed, [*own, *chat]) == rendered(plain, [*own, *chat])
    assert plain_template(changed) == plain
    assert with_system(changed, "Other.", accepts_system=True) == with_system(plain, "Other.", accepts_system=True)


@pytest.mark.parametrize("accepted", [True, False])
def test_the_added_message_can_be_read_back(accepted: bool) -> None:
    """From a template, and from the default one of several; a template without it has none."""
    changed = with_system(REFUSING, SYSTEM, accepts_system=accepted)
    assert added_system(changed) == SYSTEM
    assert added_system({"default": changed, "tools": REFUSING}) == SYSTEM
    assert [added_system(one) for one in (REFUSING, {"tools": changed}, None)] == ["", "", ""]
    if not accepted:  # the message is in the first turn, as prompts are encoded for such a template
        folded = {"role": "user", "content": f"{SYSTEM}\n\n{USER['content']}"}
        assert rendered(changed, TURNS) == rendered(REFUSING, [folded, *TURNS[1:]])


@pytest.mark.parametrize("template", [REFUSING, LEAVING_OUT])
def test_a_template_without_a_system_role_gets_the_message_once(template: str, tmp_path: Path) -> None:
    """In the first turn, of the model and of its checkpoints, of which each makes the next; whether the chat brings
    the message or leaves it to the checkpoint."""
    (source := tmp_path / "source").mkdir()
    save_trained(load_policy(TINY), source)
    config = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    policy = load_policy(str(source))
    chat = [{"role": "system", "content": SYSTEM}, USER]
    expected = encode_chat(policy, chat)
    assert policy.tokenizer.decode(expected).count("Say") == 1
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        save_trained(replace(policy, system=SYSTEM), folder)
        policy = load_policy(str(folder))
        assert encode_chat(policy, chat) == encode_chat(policy, [USER]) == expected
        own = policy.tokenizer.decode(encode_chat(policy, [{"role": "system", "content": "Mine."}, USER]))
        assert "Mine." in own
        assert "Say" not in own


def test_only_a_message_of_all_prompts_is_the_default() -> None:
    def prompt(system: str) -> Prompt:
        messages = [{"role": "system", "content": system}] if system else []
        return Prompt("a", (*messages, USER), (1,), (), {})

    assert shared_system([prompt("A"), prompt("A")]) == "A"
    assert shared_system([prompt("A"), prompt("B")]) == shared_system([prompt(""), prompt("")]) == ""
    assert shared_system([prompt("A"), prompt("")]) == ""


@pytest.mark.parametrize("where", ["config", "named", "file"])
def test_saved_wherever_the_template_is(where: str, tmp_path: Path) -> None:
    """In tokenizer_config.json, there among several, or in a file; the fingerprint of the tokenizer stays."""
    policy = load_policy(TINY)
    source, folder = tmp_path / "source", tmp_path / "saved"
    source.mkdir(), folder.mkdir()
    save_trained(policy, source)
    config = json.loads((source / "tokenizer_config.json").read_text())
    template = config.pop("chat_template")
    if where == "named":
        config["chat_template"] = [{"name": "default", "template": template}, {"name": "rag", "template": "x"}]
    elif where == "file":
        (source / "chat_template.jinja").write_text(template)
    else:
        config["chat_template"] = template
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = load_policy(str(source))
    save_trained(replace(loaded, system=SYSTEM), folder)
    saved = load_policy(str(folder), shapes_only=True)
    system = {"role": "system", "content": SYSTEM}
    expected = encode_chat(policy, [system, USER])
    assert encode_chat(saved, [USER]) == encode_chat(saved, [system, USER]) == expected
    assert tokenizer_digest(saved.tokenizer) == tokenizer_digest(loaded.tokenizer)
    if where != "named":
        assert tokenizer_digest(saved.tokenizer) == tokenizer_digest(policy.tokenizer)
        theirs = AutoTokenizer.from_pretrained(folder)
        assert theirs.apply_chat_template([USER], add_generation_prompt=True, return_dict=False) == expected


def test_adapters_have_it_next_to_them(tmp_path: Path) -> None:
    """As a template that servers take, since their base has its own."""
    policy = replace(load_policy(TINY, lora=LoraConfig(rank=2, fuse=True)), system=SYSTEM)
    save_trained(policy, tmp_path)
    template = (tmp_path / "chat_template.jinja").read_text()
    assert template == with_system(policy.tokenizer.chat_template, SYSTEM, accepts_system=True)
    fused = load_policy(str(tmp_path / "fused"), shapes_only=True)
    assert encode_chat(fused, [USER]) == encode_chat(policy, [{"role": "system", "content": SYSTEM}, USER])


THINKING = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}"
    "{% if enable_thinking is defined and enable_thinking is false %}<quiet>{% else %}<aloud>{% endif %}{% endif %}"
)
"""thinks unless it is told not to, as Qwen3's does; SmolLM3's has the same switch"""


@pytest.fixture
def thinker(tmp_path: Path) -> Path:
    """The built-in model with a template that can think."""
    source = tmp_path / "thinker"
    shutil.copytree(load_policy(TINY, shapes_only=True).path, source)
    config = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": THINKING}))
    return source


def test_thinking_is_switched_off(thinker: Path, tmp_path: Path) -> None:
    """In the prompt, and in every checkpoint, where others would switch it on again; with the system message of the
    training, and without. Both have the same tokenizer."""
    aloud, quiet = (load_policy(str(thinker), thinking=how, shapes_only=True) for how in ("template", "off"))
    asked: dict[str, Any] = {"add_generation_prompt": True, "return_dict": False, "enable_thinking": True}
    assert "<aloud>" in aloud.tokenizer.decode(aloud.tokenizer.apply_chat_template([USER], **asked))
    assert "<quiet>" in quiet.tokenizer.decode(encode_chat(quiet, [USER]))
    assert quiet.tokenizer.apply_chat_template([USER], **asked) == encode_chat(quiet, [USER])
    assert tokenizer_digest(aloud.tokenizer) == tokenizer_digest(quiet.tokenizer)
    loaded = load_policy(str(thinker), thinking="off")
    for system in ("", SYSTEM):
        folder = tmp_path / f"saved{len(system)}"
        folder.mkdir()
        save_trained(replace(loaded, system=system), folder)
        first = [{"role": "system", "content": system}] * bool(system)
        expected = encode_chat(quiet, [*first, USER])
        for how in ("template", "off"):
            saved = load_policy(str(folder), thinking=how, shapes_only=True)
            assert encode_chat(saved, [USER]) == expected
            assert added_system(saved.tokenizer.chat_template) == system
            assert tokenizer_digest(saved.tokenizer) == tokenizer_digest(aloud.tokenizer)
        theirs = AutoTokenizer.from_pretrained(folder)
        assert theirs.apply_chat_template([USER], add_generation_prompt=True, return_dict=False) == expected


def test_exported_adapters_do_not_think_either(thinker: Path, tmp_path: Path) -> None:
    """Their base has a template that does."""
    policy = load_policy(str(thinker), thinking="off", lora=LoraConfig(rank=2))
    policy = replace(policy, source="ann/base", path=tmp_path / "snapshots" / "0123")
    (folder := tmp_path / "out").mkdir()
    export_adapters(policy, folder)
    template = (folder / "chat_template.jinja").read_text()
    text = policy.tokenizer.apply_chat_template(
        [USER], chat_template=template, tokenize=False, add_generation_prompt=True, enable_thinking=True
    )
    assert "<quiet>" in text


BASE = """\
{{ bos_token }}{% for m in messages %}{{ 'Summary:\\n' if m['role'] == 'assistant' }}{{ m['content'] }}

{% endfor %}{% if add_generation_prompt %}Summary:
{% endif %}
"""
"""of a base model, as docs/own-models-and-data.md has it"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The built-in model as a base model has it, without a template."""
    source = tmp_path / "base"
    shutil.copytree(load_policy(TINY, shapes_only=True).path, source)
    config = json.loads((source / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    return source


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file with a template of the user's own."""
    path = tmp_path / "base.jinja"
    path.write_text(BASE)
    return path


@pytest.mark.parametrize("system", ["", SYSTEM])
@pytest.mark.parametrize("model", [TINY, "base"])
def test_a_template_of_the_users_own(model: str, system: str, base: Path, own: Path, tmp_path: Path) -> None:
    """In the place of the model's, or where it has none; its checkpoints have it, for transformers too, and the same
    tokenizer as a worker that is given it."""
    name = model if model == TINY else str(base)
    policy = replace(load_policy(name, chat_template=str(own)), system=system)
    first = [{"role": "system", "content": system}] * bool(system)
    expected = encode_chat(policy, [*first, USER])
    assert policy.tokenizer.decode(expected) == "\n\n".join([*([system] * bool(system)), "A post.", "Summary:\n"])
    (folder := tmp_path / "saved").mkdir()
    save_trained(policy, folder)
    saved = load_policy(str(folder), shapes_only=True)
    assert encode_chat(saved, [USER]) == expected
    assert tokenizer_digest(saved.tokenizer) == tokenizer_digest(policy.tokenizer)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs.apply_chat_template([USER], add_generation_prompt=True, return_dict=False) == expected
    assert "chat_template" not in json.loads((folder / "tokenizer_config.json").read_text())  # llama.cpp reads it first


@pytest.mark.parametrize(
    ("template", "end"),
    [
        # as Gemma's, whose tokenizer has another one
        ("{% for m in messages %}{{ m['role'] }}\n{{ m['content'] }}<|endoftext|>\n{% endfor %}", "<|endoftext|>"),
        (BASE, "<|im_end|>"),
        ("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_start|>{% endfor %}", "<|im_end|>"),
    ],
)
def test_a_text_that_was_not_sampled_ends_as_an_assistants_turn(template: str, end: str, base: Path) -> None:
    """With the token that the template closes it with, where completions end with that one; else with the
    tokenizer's."""
    tokenizer = load_policy(TINY, shapes_only=True).tokenizer
    both = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": both}))
    (own := base / "own.jinja").write_text(template)
    policy = load_policy(str(base), chat_template=str(own), shapes_only=True)
    assert policy.eos_ids == set(both)
    assert policy.end_id == tokenizer.convert_tokens_to_ids(end)


def test_the_documentation_has_it() -> None:
    assert BASE in (Path(__file__).parents[2] / "docs" / "own-models-and-data.md").read_text()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff", "no text in UTF-8"),
        (b"{% if %}", "does not work"),
        (b"{{ messages[0]['content'] }}", "leaves out what the assistant says"),
        (b"", "leaves out what the user says"),
    ],
)
def test_a_template_that_cannot_be_the_users_own(content: bytes | None, named: str, tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    if content is not None:
        path.write_bytes(content)
    with refuses(str(path), named):
        load_policy(TINY, chat_template=str(path), shapes_only=True)


@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_a_base_model_is_trained_with_it(adapter: str, base: Path, own: Path, tmp_path: Path) -> None:
    """Its run evaluates and is exported with what it was trained with, whatever the file says now. Without a template
    there is one error."""
    steps = {"stages__length__steps": 1, "stages__quality__steps": 1, "train__validate_every": 0}
    data = make_data(tmp_path / "posts", train=4, validation=2, test=2)
    args = [one for one in arguments(data, tmp_path, "run", **steps) if one != "--model=tiny"]
    args += [f"--model={base}", "--set=optimizer.learning_rate=1e-4", f"--set=model.adapter={adapter}", "--quiet"]
    with refuses("no chat template", "model.chat_template"):
        load_policy(str(base), shapes_only=True)
    assert main(args) == 2
    assert main([*args, f"--set=model.chat_template={own}"]) == 0
    own.write_text(BASE.replace("Summary", "Changed"))
    assert main(["eval", str(tmp_path / "run"), "--runs-dir", str(tmp_path), "--quiet"]) == 0
    own.unlink()
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    saved = load_policy(str(tmp_path / "out"), shapes_only=True)
    assert saved.tokenizer.decode(encode_chat(saved, [USER])).endswith("A post.\n\nSummary:\n")


def test_the_doctor_tries_it(base: Path, own: Path, call: Call) -> None:
    _, out, _ = call("doctor", "--json", "--model", str(base), "--chat-template", str(own))
    found = {one["name"]: one for one in json.loads(out)["findings"]}[str(base)]
    assert found["level"] == "ok", found
    assert_refused(call("doctor", "--chat-template", str(own)), "--chat-template is for a model")


def test_a_worker_has_it_too(base: Path, own: Path, tmp_path: Path) -> None:
    """The tokenizer that trainers compare with theirs is that of the policy, and a chat is rendered by it."""
    policy = load_policy(str(base), chat_template=str(own), shapes_only=True)
    with process("--model", str(base), "--chat-template", str(own), log=tmp_path / "log") as (_, client):
        assert client.get("/health").json()["tokenizer"] == tokenizer_digest(policy.tokenizer)
        body = {"model": str(base), "messages": [USER], "max_tokens": 1}
        answer = client.post("/v1/chat/completions", json=body).json()
        assert answer["usage"]["prompt_tokens"] == len(encode_chat(policy, [USER]))


def test_a_model_that_cannot_think_is_refused() -> None:
    with refuses("enable_thinking", "--set model.thinking=template"):
        load_policy(TINY, thinking="off", shapes_only=True)


def test_checkpoints_of_a_run_have_both(thinker: Path, tmp_path: Path) -> None:
    """A run's checkpoint answers under the system prompt of its training and without thoughts, and evaluates as before
    with the same tokenizer."""
    steps = {"stages__length__steps": 1, "stages__quality__steps": 1, "train__validate_every": 0}
    data = make_data(tmp_path / "posts", train=4, validation=2, test=2)
    args = [one for one in arguments(data, tmp_path, "run", **steps) if one != "--model=tiny"]
    given = [f"--model={thinker}", "--set=model.thinking=off", "--set=optimizer.learning_rate=1e-4", "--quiet"]
    assert main([*args, *given]) == 0
    saved = load_policy(str(tmp_path / "run" / "checkpoints" / "step-000002"), shapes_only=True)
    plain = load_policy(str(thinker), thinking="off", shapes_only=True)
    system = {"role": "system", "content": TldrConfig().system_prompt}
    assert encode_chat(saved, [USER]) == encode_chat(plain, [system, USER]) != encode_chat(plain, [USER])
    assert "<quiet>" in saved.tokenizer.decode(encode_chat(saved, [USER]))
    assert main(["eval", str(tmp_path / "run"), "--runs-dir", str(tmp_path), "--quiet"]) == 0
