"""The page of completions, driven by keys: search, order, a prompt over time, before and after training, copying."""

from pathlib import Path
from threading import Event

import pytest
from support.training import PATIENCE_S
from support.views import Gone, On, drive, play, shown, walk
from support.watching import TEXTS, append, completions, evaluate, make_run, screen
from textual.pilot import Pilot
from textual.widgets import HelpPanel, KeyPanel

from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.runs.records import SampledRollout
from smolsum.runs.search import Scan, Source
from smolsum.watch.app import WatchApp

PAGE = "tab tab tab"
"""Keys from the first page to that of completions, at 120 columns."""


def evaluated(tmp_path: Path, *, after: bool = True) -> RunPaths:
    """A run with its test split before and after training."""
    paths = make_run(tmp_path)
    evaluate(paths, "start", {"test-1": "a long and winding summary", "test-2": "the same"})
    if after:
        evaluate(paths, "length", {"test-2": "the same", "test-1": "a short summary"})
    return paths


def reversed_text(app: WatchApp) -> str:
    """All text of the screen in reverse video that is bold, as a search marks it."""
    strips = app.screen._compositor.render_strips()
    return "|".join(s.text for strip in strips for s in strip if s.style and s.style.reverse and s.style.bold)


def test_search_over_the_whole_run(tmp_path: Path) -> None:
    """A search lists the hits of all steps and marks the text; n and N go through them, return opens the step, and
    escape ends it."""
    play(
        make_run(tmp_path),
        ("slash =LANDLORD enter", "hit 1/4 /LANDLORD", On("completions"), "rollout 4 of step 1, train-0001"),
        ("", lambda app: "landlord" in reversed_text(app).split("|")),
        ("n n n n N", "hit 3/4", "rollout 3 of step 60, train-0001"),
        ("enter", " step 60 prompt 1/2", "rollout 3 ", lambda app: "landlord" in reversed_text(app)),
        ("n", "hit 4/4"),
        ("escape", Gone("LANDLORD")),
        ("slash =0001 enter", "/0001", "train-0001"),
        ("slash =nowhere enter", "no hit /nowhere"),  # in place of the text before
    )


def test_hits_in_evaluations(tmp_path: Path) -> None:
    """They have their measures, and return lists their example over time."""
    play(
        evaluated(tmp_path),
        ("slash =winding enter", "rollout 1 of start-test, test-1", "meteor 0"),
        ("enter", "2/2 test-1 over time", "a short summary"),
        ("escape", "hit 1/1 /winding"),
    )


def test_hits_by_reward_and_error(tmp_path: Path) -> None:
    """The order is named, can be reversed, and changes the hit under the bar."""
    play(
        make_run(tmp_path),
        ("slash =heating enter", "by order"),
        ("s", "by reward", "total 0.250"),
        ("i", "by reward, reversed", "total -0.050"),
        ("i s s s s", "by error", " cut "),
    )


def test_a_long_search_leaves_the_view_free_and_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys work while it goes on, hits come as they are found, escape stops it and keeps them."""
    paths = make_run(tmp_path)
    content = paths.completions(60).read_bytes()
    for step in range(61, 400):
        paths.completions(step).write_bytes(content)
    take, goes_on = Scan._take, Event()

    def slowly(scan: Scan, source: Source, offset: int, sample: SampledRollout | None) -> None:
        assert source != 100 or goes_on.wait(PATIENCE_S)
        take(scan, source, offset, sample)

    monkeypatch.setattr(Scan, "_take", slowly)

    play(
        paths,
        ("slash =landlord enter", "searching 12%", "train-0011"),  # the second hit
        ("n", "hit 2/"),
        ("escape",),
        (goes_on.set, "stopped at", "hit 2/"),
        ("escape", Gone("/landlord")),
    )


def test_one_prompt_over_time(tmp_path: Path) -> None:
    """All its steps with their means; the same keys as for steps walk through them; return opens one."""
    paths = make_run(tmp_path)
    append(paths.completions(30), completions(30, 80))
    play(
        paths,
        (f"{PAGE} h", "3/3 train-0001 over time", "│ step 1 ", "│ step 30 ", "│ step 60 ", "of step 60,"),
        ("[", "rollout 1 of step 30, train-0001"),
        ("left N", "rollout 1 of step 1, train-0001"),
        ("}", "of step 60"),
        ("up enter", " step 30 prompt 1/2"),
        ("h h", Gone("over time")),
        ("slash =train-0011 enter h", "1/1 train-0011 over time"),
    )


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_before_and_after_training(tmp_path: Path, size: tuple[int, int]) -> None:
    """The same example in the evaluation at the start and at the end: side by side where there is room."""

    def side_by_side(app: WatchApp) -> bool:
        lines = screen(app).splitlines()
        (before,) = [n for n, line in enumerate(lines) if "before: start-test" in line]
        (after,) = [n for n, line in enumerate(lines) if "after: length-test" in line]
        return before == after

    play(
        evaluated(tmp_path),
        ("b", "example 1/2", "a long and winding summary", "a short summary"),
        ("", lambda app: side_by_side(app) is (size[0] >= 120)),
        ("d", "{+short+}"),
        ("c", "test-1 of length-test to the clipboard", lambda app: app.clipboard == "a short summary"),
        ("s", "by tokens"),
        ("s", "by change of METEOR"),
        ("n", "example 2/2"),
        ("b", Gone("before: start-test")),
        size=size,
    )


@pytest.mark.parametrize("query", ["2", "test-2"])
def test_the_number_of_an_example_shows_it_before_and_after(tmp_path: Path, query: str) -> None:
    """Three keys to what became of one prompt; escape lists the samples that have the number, too."""
    play(
        evaluated(tmp_path),
        (f"slash ={query} enter", "example 1/2", "before: start-test", "the same"),
        ("escape", Gone("before: start-test"), f" /{query} "),
    )


def test_nothing_to_compare(tmp_path: Path) -> None:
    """One evaluation is shown alone, next to what is still to come; without one the page says what it waits for."""
    play(
        evaluated(tmp_path, after=False),
        ("b", "before: start-test", "not yet: training evaluates after each stage"),
        ("", lambda app: "→" not in next(line for line in screen(app).splitlines() if "test-1 " in line)),
    )
    play(make_run(tmp_path, "without"), ("b", "no evaluation has completions"))


def test_files_that_vanish(tmp_path: Path) -> None:
    """What was found stays listed, and says that its file is gone."""
    paths = make_run(tmp_path)
    play(
        paths,
        ("slash =landlord enter", "hit 1/4", "tell the landlord"),
        (paths.completions(1).unlink,),
        ("n", "hit 2/4", "its file is there no more", "tell the landlord"),
    )


def test_copy_by_key(tmp_path: Path) -> None:
    app = play(make_run(tmp_path), (f"{PAGE} j c", "sent the completion to the clipboard"))
    assert app.clipboard == TEXTS[2]


def test_copy_by_mouse(tmp_path: Path) -> None:
    """Dragging over a text marks it and copies it, without the frame and with the lines that a page broke joined."""
    paths = make_run(tmp_path)

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await walk(app, pilot, (f"{PAGE} j j", "Mira is upset"))
        lines = screen(app).splitlines()
        (x, y) = next((line.index("Mira is"), n) for n, line in enumerate(lines) if "Mira is" in line)
        assert "landlord" in lines[y + 1]
        await pilot.mouse_down(offset=(x, y))
        await pilot.hover(offset=(x + 6, y))
        marked = [s.text for s in app.screen._compositor.render_strips()[y] if s.style and s.style.reverse]
        assert "".join(marked) == "Mira is"
        await pilot.hover(offset=(98, y + 1))
        await pilot.mouse_up(offset=(98, y + 1))
        await shown(app, pilot, "selected characters to the clipboard")
        assert app.clipboard == TEXTS[3]

    drive(WatchApp(Run(paths)), script, (100, 40))


def test_all_keys_are_in_the_help_of_a_small_terminal(tmp_path: Path) -> None:
    """The help has the keys of this page, also where they need more lines than there are; the page goes on below it."""
    found = {}

    def keys(app: WatchApp) -> bool:
        panel = app.screen.query_one(KeyPanel)
        assert app.screen.query_one(HelpPanel).region.right == 80
        found["text"] = " ".join(str(binding.binding.description) for binding in app.screen.active_bindings.values())
        return panel.max_scroll_y > 0

    play(
        make_run(tmp_path),
        ("tab tab tab question_mark", "quit the view; the run continues", keys),
        ("n", lambda app: app.page.rollouts.place == 1),
        ("question_mark", Gone("the run continues")),
        size=(80, 24),
    )
    assert all(word in found["text"] for word in ("find", "history", "before/after", "sort", "copy", "diff"))
