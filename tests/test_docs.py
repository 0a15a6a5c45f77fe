"""The documentation agrees with the program: commands parse, settings exist and are documented, links and paths lead
somewhere."""

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import make_config_docs
import pytest
import tomli
import typer
from support.places import ROOT

from smolsum.cli.main import app, main
from smolsum.config.sections import SECTIONS, STAGE_FIELDS
from smolsum.config.stage import StageConfig
from smolsum.rollout.protocol import Health
from smolsum.tasks import TASKS

CARDS = ROOT.glob("smolsum/policy/builtin/*/README.md")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks" / "README.md", *CARDS])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
KNOWN = typer.main.get_command(app).commands  # type: ignore[attr-defined]
NO_SHELL = ("python", "toml", "json", "text", "yaml")
"""Languages of blocks that hold no commands."""
SECTION_FIELDS = {name: set(record.__dataclass_fields__) for name, record in SECTIONS.items()}
SECTION_FIELDS["task"] = {field for task in TASKS.values() for field in task.settings.__dataclass_fields__} | {
    "letters"
}
UNCLEAR = "told|mends?|mended|whoever|somebody|nobody|lies|bears?|beside|but for|of its own|is none|are none|asked of"
UNCLEAR_IN_PAGES = f"{UNCLEAR}|goes on|ends elsewhere|no run fills"
FOLDERS = "smolsum|presets|scripts|benchmarks|tests|docs"


def code_blocks(text: str) -> Iterator[str]:
    """Yields the fenced blocks that may hold commands, and the indented lines outside of all fences."""
    fence = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
    for match in fence.finditer(text):
        if match[2] not in NO_SHELL:
            yield match[3]
    yield "\n".join(line for line in fence.sub("", text).splitlines() if line.startswith("    "))


def commands(text: str) -> Iterator[list[str]]:
    """Yields the arguments of every `smolsum …` of the page's blocks."""
    for block in code_blocks(text):
        for line in block.replace("\\\n", " ").splitlines():
            if "smolsum" not in line or re.match(r"\s*([-|*]|\w+/)", line):
                continue
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if re.fullmatch(r"[();<>|&]+", word):
                    if "smolsum" in words:
                        yield words[words.index("smolsum") + 1 :]
                    words = []
                else:
                    words.append(word)


def setting_exists(key: str) -> bool:
    """Whether `section.field`, or `stages.NAME.field`, is a setting of some task."""
    section, *fields = key.split(".")
    if section == "stages":
        return len(fields) < 2 or fields[1] in STAGE_FIELDS
    return section in SECTION_FIELDS and len(fields) == 1 and fields[0] in SECTION_FIELDS[section]


def parse(words: list[str]) -> None:
    """Fails unless the program's own parser accepts these arguments."""
    name, *rest = words
    assert name in KNOWN, f"no command {name}"
    try:
        KNOWN[name].make_context(name, rest).close()
    except typer.TyperException as error:
        pytest.fail(f"smolsum {shlex.join(words)}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_parse(page: Path) -> None:
    """Each command, and each of its flags and values, is accepted by the program's own parser; nothing is run."""
    for words in commands(page.read_text(encoding="utf-8")):
        parse(words)


def test_commands_of_the_help_parse() -> None:
    """So is each example in the help of a command, also behind a variable."""
    examples = [
        words for one in KNOWN.values() for words in commands(re.sub("^ *", "    ", one.help or "", flags=re.MULTILINE))
    ]
    examples = [words for words in examples if "`" not in " ".join(words)]  # prose
    assert len(examples) >= 15
    for words in examples:
        parse(words)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_settings_of_commands_are_accepted(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each training of one run that a page shows resolves: its model, strategy, signals, presets and values."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    for model in {"my-model", *re.findall(r"--model (runs/\S+/step-\d+)", text)}:
        (tmp_path / model).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / model).symlink_to(ROOT / "smolsum" / "policy" / "builtin" / "tiny")
    for code in re.findall(r"```(?:python|toml)\n(.*?)```", text, re.DOTALL):
        if file := re.match(r"# (\w+\.(?:py|toml))\n", code):
            (tmp_path / file[1]).write_text(code, encoding="utf-8")
    template = re.search(
        r"```jinja\n(.*?)```", (ROOT / "docs" / "own-models-and-data.md").read_text("utf-8"), re.DOTALL
    )
    assert template
    (tmp_path / "base.jinja").write_text(template[1], encoding="utf-8")
    for name, *rest in commands(text):
        if (
            name == "train"
            and "./capitals.py" not in rest
            and not {"--resume", "--mirror", "--track", "--find-lr", "all"} & set(rest)
        ):
            given = [word for word in rest if word not in ("--dry-run", "--watch")]
            assert main(["train", *given, "--dry-run", "--quiet"]) == 0, f"{rest}: {capsys.readouterr().err}"


def named_commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the command and the flags of each `smolsum …` in a sentence, flags up to the next comma or semicolon."""
    for match in re.finditer(r"(?<!of )\bsmolsum ([a-z][\w-]*)([^,;`]*)", text):
        yield match[1], re.findall(r"(?<!\S)--[a-z-]+", match[2])


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_in_sentences_exist(page: Path) -> None:
    """A command that a sentence names exists, with its flags."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert unknown("; ".join(re.findall(r"`((?:uv run )?smolsum [^`\n]+)`", text))) == []


def test_commands_of_hints_exist() -> None:
    """So does each that the hint of an error names."""
    hints = []
    for path in sorted((ROOT / "smolsum").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg in ("hint", "retry"):
                parts = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
                hints.append(" X ".join(part for part in parts if isinstance(part, str)))
    assert sum(len(list(named_commands(hint))) for hint in hints) >= 10
    assert [wrong for hint in hints for wrong in unknown(hint)] == []


def unknown(text: str) -> list[str]:
    """The commands, and flags of commands, of a text that the program does not have."""
    found = []
    for name, flags in named_commands(text):
        known = (
            {flag for one in KNOWN[name].params for flag in [*one.opts, *one.secondary_opts]} if name in KNOWN else ()
        )
        found += [f"{name} {flag}" for flag in flags if flag not in known] if known else [name]
    return found


def test_commands_are_found() -> None:
    """The search for commands sees those of a pipe, an assignment and a list, and no line of a directory tree."""
    block = "A=1 uv run smolsum runs --json && smolsum doctor # smolsum x\nRUN=$(smolsum watch a)"
    page = f"```sh\n{block}\n```\n\n    smolsum/\n"
    assert list(commands(page)) == [["runs", "--json"], ["doctor"], ["watch", "a"]]
    assert sum(len(list(commands(path.read_text(encoding="utf-8")))) for path in PAGES) >= 40


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_settings_exist(page: Path) -> None:
    """Each setting that the page names, after --set or as `section.key`, belongs to a task."""
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"--set[ =]([a-z_]+\.[a-z_.]+)", text)
    named += re.findall(rf"`((?:{'|'.join([*SECTION_FIELDS, 'stages'])})\.[a-z_.]+)(?:=[^`]*)?`", text)
    files = (".toml", ".json", ".jsonl", ".py", ".md", ".parquet", ".safetensors")
    assert [key for key in named if not key.endswith(files) and not setting_exists(key)] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_and_paths_exist(page: Path) -> None:
    """Local links, pictures and the paths of the repository in code all exist."""
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    paths = re.findall(rf"(?<![\w./-])((?:{FOLDERS})/[\w/.-]*\w/?)(?=[`\s:),;])", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    modules = re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", text)
    places = (ROOT, ROOT / "smolsum", page.parent)
    assert [module for module in modules if not any((place / module).exists() for place in places)] == []


@pytest.mark.parametrize(
    "record",
    [*SECTIONS.values(), StageConfig, *(task.settings for task in TASKS.values())],
    ids=lambda one: one.__name__,
)
def test_every_setting_has_a_docstring(record: type) -> None:
    meanings = make_config_docs.docstrings(record)
    assert record.__doc__
    assert [field.name for field in fields(record) if not meanings.get(field.name)] == []


def test_configuration_page_is_up_to_date() -> None:
    """After a change of a record: `python scripts/make_config_docs.py`."""
    assert make_config_docs.PAGE.read_text(encoding="utf-8") == make_config_docs.page()


def test_architecture_shows_the_levels() -> None:
    """The table of packages has each package on the level that the import contract gives it."""
    contracts = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    levels = {
        (level, name.rpartition(".")[2].strip())
        for level, layer in enumerate(reversed(layers), start=1)
        for name in re.split("[|:]", layer)
    }
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| ([^|]*) \|", page, re.MULTILINE)
    shown = {(int(level), name) for level, names in rows for name in re.findall(r"`(\w+)(?:/|\.py)`", names)}
    assert shown == levels


def test_worker_page_lists_health() -> None:
    """The page of workers names every field of the answer to GET /health."""
    page = (ROOT / "docs" / "workers.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if "`GET /health`" in line)
    assert [field for field in Health.__struct_fields__ if f"`{field}`" not in row] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_words_are_plain(page: Path) -> None:
    """The pages keep clear of the words that made earlier ones hard to read."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert re.findall(rf"\b(?:{UNCLEAR_IN_PAGES})\b", prose, re.IGNORECASE) == []


def said(tree: ast.Module) -> Iterator[str]:
    """Yields the docstrings of a module, of all in it and of its values, and the texts of `help`."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text
            case ast.keyword(arg="help", value=value):
                yield from (part.value for part in ast.walk(value) if isinstance(part, ast.Constant))


@pytest.mark.parametrize("path", sorted((ROOT / "smolsum").glob("*/")), ids=lambda path: path.name)
def test_words_of_a_package_are_plain(path: Path) -> None:
    """So do the docstrings and help texts of the package."""
    texts = [text for file in path.rglob("*.py") for text in said(ast.parse(file.read_text(encoding="utf-8")))]
    assert re.findall(rf"\b(?:{UNCLEAR})\b", " ".join(texts).replace("None", ""), re.IGNORECASE) == []


def test_readme_is_one_page() -> None:
    """The README fits a page: at most 150 lines of at most 150 characters."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 150


def test_site_lists_every_page() -> None:
    """The navigation of mkdocs.yml names each page of docs/ once."""
    named = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md"))
