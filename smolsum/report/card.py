"""The model card of an exported policy: its results with intervals, how to use it, how it came about, and its limits.

Its tables are those of a report about the evidence next to it, so that each number has its file. The metadata follow
the hub's model cards (`model-index`).
"""

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from smolsum.config.hub import HubName, hub_name
from smolsum.errors import UsageError
from smolsum.report.collect import ReportInputs, TrainedRun, gather
from smolsum.report.compatibility import comparable
from smolsum.report.document import DASH, Figure, Item, Section, Table
from smolsum.report.outcomes import Journey, compared, journeys
from smolsum.report.results import configuration_results
from smolsum.report.sections import findings, scores, setup, training
from smolsum.report.write import figures, printable, section_lines
from smolsum.runs.evaluation_records import SUMMARY
from smolsum.runs.paths import RunPaths

CARD = "README.md"
FIGURES = "figures/"
PLACE = "OWNER/NAME"
"""stands for the repository until it is known"""


@dataclass(frozen=True)
class CardFacts:
    """What a card says of the exported files; the rest is in the evidence."""

    title: str
    step: int
    parameters: int
    dtype: str
    system: str = ""
    """the system message that the chat template applies"""
    license: str = ""
    adapter: bool = False
    """whether only adapters were exported, for the base model"""
    file: str = ""
    """the GGUF file that was exported; empty for the Hugging Face layout"""


def card_files(evidence: RunPaths, facts: CardFacts, folder: Path) -> dict[str, str]:
    """Return the card and its figures by their names in `folder`, which holds the evidence. Raises UsageError where the
    evidence has no evaluation of that step on the test split."""
    found = gather([str(evidence.root)], evidence.root.parent)
    if not found.trained:
        reason = found.left_out[0].reason.replace(f"{evidence.root}/", "")
        raise UsageError(f"{evidence.name} has no results for a card: {reason}", hint="smolsum eval makes them")
    inputs = comparable(found)
    run, results, metrics = inputs.trained[0], configuration_results(inputs), compared(inputs)
    ways = journeys(inputs, results, metrics)
    sections = [printable(one) for one in _sections(inputs, ways)]
    body = [f"# {facts.title}", "", *_opening(run, facts), findings.verdict(inputs, ways, metrics), ""]
    limits = Section("Limits", (), tuple(setup.limits(inputs, results)))
    for section in (sections[0], None, *sections[1:], limits):
        body += _use(run, facts) if section is None else section_lines(section, folder, FIGURES)
    body += _origin(evidence, run, facts)
    card = f"---\n{_metadata(run, ways, facts, evidence, folder)}\n---\n\n" + "\n".join(body)
    drawn = {f"{FIGURES}{name}": svg for name, svg in figures(sections).items()}
    return {CARD: card, **drawn}


def _sections(inputs: ReportInputs, ways: Sequence[Journey]) -> list[Section]:
    """The sections of a report that say what one run did."""
    metrics = compared(inputs)
    judged = (
        [scores.judged_scores_table(inputs), scores.noise_table(inputs), *setup.judged_metrics_tables(inputs)]
        if inputs.judge
        else []
    )
    found: list[tuple[str, Iterable[Item]]] = [
        (
            "Results",
            [
                *findings.findings_items(inputs, ways, metrics, advice=False),
                scores.headlines_table(inputs),
                *training.stage_results_tables(inputs),
                *scores.other_evaluations_tables(inputs),
                *judged,
            ],
        ),
        (
            "Training",
            [
                *setup.stage_settings_tables(inputs, every=True),
                setup.signals_table(inputs),
                setup.settings_table(inputs),
                training.cost_table(inputs),
                *training.curve_figures(inputs),
            ],
        ),
        # the last table has texts of the data
        ("Data", setup.data_tables(inputs)[:-1]),
    ]
    numbers = {Table: count(1), Figure: count(1)}
    return [
        Section(title, tuple(replace(item, number=str(next(numbers[type(item)]))) for item in _filled(items)))
        for title, items in found
    ]


def _filled(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items without what a report would ask its reader to run, and without empty rows and columns."""
    for item in items:
        if isinstance(item, Figure):
            yield item
        elif item.filled:
            rows = [[DASH if cell.command else cell for cell in row] for row in item.filled]
            kept = [place for place, column in enumerate(zip(*rows, strict=True)) if any(c != DASH for c in column)]
            names = tuple(item.columns[place] for place in kept)
            yield replace(item, columns=names, rows=tuple(tuple(row[place] for place in kept) for row in rows))


def _opening(run: TrainedRun, facts: CardFacts) -> list[str]:
    what = "LoRA adapters for" if facts.adapter else "trained from"
    text = (
        f"{_size(facts.parameters)} parameters in {facts.dtype}, {what} `{run.model}` with GRPO on "
        f"`{run.config['data']['path']}`, for the task `{run.config['task']['name']}` of "
        "[smolsum](https://github.com/smolsum/smolsum)."
    )
    return [text, ""]


def _size(count: int) -> str:
    """A number of parameters in words, with two significant digits."""
    unit, name = (1e9, "billion") if count >= 1e9 else (1e6, "million")
    return f"{count / unit:.2g} {name}" if count < 100 * unit else f"{count / unit:.0f} {name}"


def _use(run: TrainedRun, facts: CardFacts) -> list[str]:
    """How to ask the model, with the tools that were tried."""
    most = run.config["sampling"]["max_new_tokens"]
    lines = ["## Use", ""]
    if facts.system:
        lines += [
            "The model was trained with this system message"
            + (":" if facts.adapter else ", which its chat template adds to a chat without one:"),
            "",
            *_fenced(facts.system),
            "",
        ]
    lines += [f"The results are those of greedy decoding, up to {most} tokens.", ""]
    if facts.adapter:
        base = _on_hub(run, "model")
        system = f" --system-prompt {shlex.quote(facts.system)}" if facts.system else ""
        return [
            *lines,
            "```sh",
            f"hf download {PLACE} --local-dir adapters",
            f"mlx_lm.generate --model {base.id if base else 'BASE'} --adapter-path adapters \\",
            f'  --max-tokens {most} --temp 0{system} --prompt "…"',
            "```",
            "",
        ]
    if facts.file:
        return [
            *lines,
            "```sh",
            f"hf download {PLACE} --local-dir model && cd model",
            f"llama-server --model {facts.file} --jinja  # ask it with temperature 0",
            "ollama create my-model --file Modelfile && ollama run my-model",
            "```",
            "",
        ]
    lines += [
        "```python",
        "from transformers import pipeline",
        "",
        f'generate = pipeline("text-generation", "{PLACE}")',
        f'answer = generate([{{"role": "user", "content": "…"}}], max_new_tokens={most}, do_sample=False)',
        'print(answer[0]["generated_text"][-1]["content"])',
        "```",
        "",
        "```sh",
        f'mlx_lm.generate --model {PLACE} --prompt "…" --max-tokens {most} --temp 0',
        f"mlx_lm.server --model {PLACE} --temp 0",
        f"vllm serve {PLACE}  # ask it with temperature 0",
        "```",
        "",
    ]
    return lines


def _fenced(text: str) -> list[str]:
    """A text as a code block, which shows tags and Markdown in it as they are."""
    marks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [f"{marks}text", *printable(text).split("\n"), marks]


def _origin(evidence: RunPaths, run: TrainedRun, facts: CardFacts) -> list[str]:
    """Where the numbers and the weights are from."""
    place = f"evidence/{evidence.name}"
    report, train = (
        f"smolsum report {shlex.quote(place)}",
        f"smolsum train --config {shlex.quote(f'{place}/config.toml')}",
    )
    train += "".join(f" --plugin {shlex.quote(plugin.path)}" for plugin in run.info.plugins)
    last = next(reversed(run.info.steps))
    lines = [
        "## Where the numbers are from",
        "",
        "- A number in a table links to its file in `evidence/`, and its title names the field. Differences, "
        f"intervals and p values are computed from the scores there; `{report}` repeats them.",
        f"- Weights: step {facts.step} of the run `{evidence.name}`, in its stage `{last}`.",
        f"- The settings are those of `{place}/config.toml`: `{train}` repeats the run where model, data and plugins "
        "are at hand.",
        "- Left out of the evidence: texts of data and answers, names of folders and hosts, and addresses.",
    ]
    for plugin in run.info.plugins:
        names = ", ".join((*plugin.rewards, *plugin.tasks)) or "criteria"
        lines.append(f"- {names}: code of the user, `{plugin.path}`, SHA-256 `{plugin.sha256}`, not included.")
    versions = ", ".join(f"{name} {version}" for name, version in run.info.versions.items())
    return [*lines, f"- Made with {versions}.", ""]


def _on_hub(run: TrainedRun, section: str) -> HubName | None:
    """Return the hub's name of the model or the data; None for a path, which may look like one."""
    path = str(run.config[section]["path"])
    return hub_name(path) if path in run.info.revisions else None


def _metadata(run: TrainedRun, ways: Sequence[Journey], facts: CardFacts, evidence: RunPaths, folder: Path) -> str:
    """The card's metadata as YAML."""
    from huggingface_hub import EvalResult, ModelCardData

    base, data = (_on_hub(run, section) for section in ("model", "data"))
    summary, changes = run.last.summary, ways[0].end.changes if ways else {}
    source = (run.last.folder / SUMMARY).relative_to(folder).as_posix()
    results = []
    for headline in summary.headlines:
        if (value := summary.metrics.get(headline.metric)) is None:
            continue
        arguments: dict[str, Any] = {"n": summary.n, "file": source, "field": f"metrics.{headline.metric}"}
        change = changes.get(headline.metric)
        if change is not None and math.isfinite(change.low):
            arguments["interval_95"] = [change.low, change.high]
        path = str(run.config["data"]["path"])
        results.append(
            EvalResult(
                task_type="text-generation",
                task_name=run.config["task"]["name"],
                dataset_type=data.id if data else path,
                dataset_name=path,
                dataset_split=run.config["data"]["test_split"],
                metric_type=headline.metric,
                metric_name=headline.title,
                metric_value=value,
                metric_args=arguments,
            )
        )
    card = ModelCardData(
        model_name=facts.title,
        base_model=base.id if base else None,
        datasets=[data.id] if data else None,
        license=facts.license or None,
        library_name="gguf" if facts.file else "mlx" if facts.adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["smolsum", "grpo", "gguf" if facts.file else "mlx"],
        eval_results=results,
    )
    if base:
        card["base_model_relation"] = "adapter" if facts.adapter else "finetune"
    return str(card.to_yaml())
