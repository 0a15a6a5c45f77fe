"""Draw the pictures in docs/, from a finished run next to others: `smolsum watch` as SVG (the first page at three
sizes, dark and light, the other pages, the lists) and the report of all runs of the directory at three widths as PNG.

    uv run python scripts/make_screens.py runs/NAME runs/OF-A-GRID

The second run, if there is one, shows its grid in the list of groups. The report needs Chromium on the path.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.watch.app import WatchApp
from smolsum.watch.export import bare

OUT = Path(__file__).parents[1] / "docs"
MOST_BYTES = 2_000_000
HEIGHTS = {360: 740, 768: 1024, 1280: 900}
"""of the window, by its width, in pixels"""
LEAST_WINDOW = 500
"""pixels; a narrower page is put into a frame"""


@dataclass(frozen=True)
class Screen:
    """The keys that lead to a page, and the terminal."""

    keys: tuple[str, ...] = ()
    size: tuple[int, int] = (120, 40)
    light: bool = False


SCREENS = {
    "watch": Screen(),
    "watch-light": Screen(light=True),
    "watch-80x24": Screen(size=(80, 24)),
    "watch-80x24-light": Screen(size=(80, 24), light=True),
    "watch-200x60": Screen(size=(200, 60)),
    "watch-200x60-light": Screen(size=(200, 60), light=True),
    "watch-charts": Screen(("tab",)),
    "watch-chart": Screen(("1", "left", "shift+left", "w", "w")),
    "watch-metrics": Screen(("tab", "tab", "down", "down", "v")),
    "watch-completions": Screen(("tab", "tab", "tab", "s", "s", "s")),
    "watch-results": Screen(("tab", "tab", "tab", "tab")),
    "watch-log": Screen(("l",)),
    "watch-search": Screen(("slash", *"money", "enter")),
    "watch-before-after": Screen(("b", "d")),
    "watch-runs": Screen(("r",)),
    "watch-compare": Screen(("r", "space", "up", "space", "tab")),
}
"""by file in docs/"""
OF_A_GRID = {"watch-groups": Screen(("r", "ctrl+g", "ctrl+s", "ctrl+s"))}


async def draw(paths: RunPaths, screen: Screen) -> str:
    """Return the view of a run as SVG."""
    app = WatchApp(Run(paths), light=screen.light)
    async with app.run_test(size=screen.size) as pilot:
        for key in screen.keys:
            await pilot.press(key)
        await pilot.pause(1.0)
        drawing = app.export_screenshot(title=f"smolsum watch {paths.name}", simplify=True)
    return small(bare(drawing))


def small(drawing: str) -> str:
    """Return an SVG of a whole screen with short names and without clipping, which changes nothing on the screen."""
    drawing = re.sub(r"<clipPath id=\"terminal-\d+-line-\d+\">.*?</clipPath>\s*", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r' clip-path="url\(#terminal-\d+-line-\d+\)"', "", drawing)
    return re.sub(r"terminal-\d+-", "t-", drawing)


def photograph(page: Path, width: int, target: Path) -> None:
    """Write the first screen of a page, in a window of this width, as PNG."""
    height, shown = HEIGHTS[width], page
    if width < LEAST_WINDOW:
        shown = page.with_name("frame.html")
        frame = f'<iframe src="{page.name}" style="width:{width}px;height:{height}px;border:1px solid #888"></iframe>'
        shown.write_text(f'<body style="margin:0;display:grid;place-items:center;background:#ddd">{frame}')
    window = f"--window-size={max(width, LEAST_WINDOW)},{height + (shown != page) * 8}"
    quiet = ("--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update")
    with tempfile.TemporaryDirectory() as profile:
        own = (f"--user-data-dir={profile}", "--no-sandbox", "--hide-scrollbars", window, f"--screenshot={target}")
        command = ["chromium", "--headless", *quiet, *own, shown.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    """Write one file for each picture."""
    paths, *grids = [RunPaths(Path(argument)) for argument in sys.argv[1:]]
    total = 0
    OUT.mkdir(exist_ok=True)
    pictures = [(paths, *one) for one in SCREENS.items()] + [
        (grid, *one) for grid in grids for one in OF_A_GRID.items()
    ]
    for run, name, screen in pictures:
        target = OUT / f"{name}.svg"
        target.write_text(asyncio.run(draw(run, screen)), encoding="utf-8")
        total += target.stat().st_size
        print(target)
    with tempfile.TemporaryDirectory() as folder:
        runs = [str(path.parent) for path in sorted(paths.root.parent.glob("*/run.json"))]
        subprocess.run([sys.executable, "-m", "smolsum", "report", *runs, "--output", folder], check=True)
        for width in HEIGHTS:
            target = OUT / f"report-{width}.png"
            photograph(Path(folder) / "report.html", width, target)
            total += target.stat().st_size
            print(target)
    if total > MOST_BYTES:
        sys.exit(f"{total:,} bytes are too many for a repository: leave pictures out")


if __name__ == "__main__":
    main()
