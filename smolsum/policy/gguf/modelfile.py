"""The Modelfile from which Ollama makes a model of a GGUF file (`ollama create NAME -f Modelfile`)."""

import json
from collections.abc import Sequence
from itertools import pairwise

from smolsum.policy.load import Policy

ROLES = ("system", "user", "assistant")
MARK = "§content§"


def modelfile(policy: Policy, file: str, *, most: int) -> str:
    """Return a Modelfile for a GGUF file next to it: greedy answers of at most so many tokens, as in evaluations.

    Ollama knows a few chat templates, and takes no other from a file. Where the policy's puts turns one after the other
    (`_turns`), the Modelfile says the same in Ollama's language.
    """
    lines = [f"FROM ./{file}"]
    turns = _turns(policy)
    if turns is None:
        lines.append("# the chat template is in the file: llama.cpp reads it, Ollama needs a TEMPLATE of your own")
    else:
        lines.append(f"TEMPLATE {_quoted(_template(*turns))}")
    if policy.system:
        lines.append(f"SYSTEM {_quoted(policy.system)}")
    # Ollama's own default is 1.1, which changes greedy answers too
    lines += ["PARAMETER temperature 0", "PARAMETER repeat_penalty 1.0", f"PARAMETER num_predict {most}"]
    stops = [policy.tokenizer.convert_ids_to_tokens(number) for number in sorted(policy.eos_ids)]
    return "\n".join([*lines, *(f"PARAMETER stop {json.dumps(one, ensure_ascii=False)}" for one in stops)]) + "\n"


def _quoted(text: str) -> str:
    return f'"""{text}"""'


def _template(turns: dict[str, tuple[str, str]], opening: str) -> str:
    """Return a template in Ollama's language, that of Go."""
    branches = "".join(
        f'{{{{ {"if" if n == 0 else "else if"} eq .Role "{role}" }}}}{before}{{{{ .Content }}}}{after}'
        for n, (role, (before, after)) in enumerate(turns.items())
    )
    return f"{{{{ range .Messages }}}}{branches}{{{{ end }}}}{{{{ end }}}}{opening}"


def _turns(policy: Policy) -> tuple[dict[str, tuple[str, str]], str] | None:
    """Return what stands before and after the content of each role's turns, and what opens an answer; None for a
    template that is more than such turns one after the other."""
    tokenizer = policy.tokenizer
    backend, bos = tokenizer.backend_tokenizer, tokenizer.bos_token or ""
    adds_bos = bool(bos) and backend.encode("a").ids[:1] == [tokenizer.bos_token_id]  # Ollama does so itself

    def rendered(messages: Sequence[dict[str, str]], *, answer: bool = False) -> str:
        text = str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=answer))
        return text.removeprefix(bos) if adds_bos else text

    chat = [{"role": role, "content": f"{MARK}{n}"} for n, role in enumerate((*ROLES, "user", "assistant", "user"))]
    try:
        whole = [rendered(chat[:n]) for n in range(1, len(ROLES) + 1)]
        parts = [whole[0], *(b.removeprefix(a) for a, b in pairwise(whole))]
        turns = {}
        for n, (role, part) in enumerate(zip(ROLES, parts, strict=True)):
            before, _, after = part.partition(f"{MARK}{n}")
            turns[role] = before, after
        opening = rendered(chat, answer=True).removeprefix(rendered(chat))
        for messages in (chat,) if policy.system else (chat, chat[1:]):
            texts = (f"{turns[one['role']][0]}{one['content']}{turns[one['role']][1]}" for one in messages)
            if rendered(messages, answer=True) != "".join(texts) + opening:
                return None
    except Exception:  # templates raise anything
        return None
    return turns, opening
