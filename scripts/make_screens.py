"""Draw the pictures of `smolsum watch` in docs/ as SVG, from a finished run.

uv run python scripts/make_screens.py runs/NAME
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.watch.app import WatchApp

OUT = Path(__file__).parents[1] / "docs"
SIZE = (120, 40)
SCREENS = {
    "watch": (),
    "watch-charts": ("tab",),
    "watch-completions": ("tab", "tab", "s", "s", "s"),
    "watch-results": ("tab", "tab", "tab"),
}
"""file in docs/, and the keys that lead to its page"""


async def draw(paths: RunPaths, keys: tuple[str, ...]) -> str:
    """Return the view of a run after these keys, as SVG."""
    app = WatchApp(Run(paths))
    async with app.run_test(size=SIZE) as pilot:
        for key in keys:
            await pilot.press(key)
        await pilot.pause(1.0)
        drawing = app.export_screenshot(title=f"smolsum watch {paths.name}")
    # a README loads no fonts from the network, and the comment only names the program that drew it
    return re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", drawing, flags=re.DOTALL)


def main() -> None:
    """Write one file for each picture."""
    paths = RunPaths(Path(sys.argv[1]))
    OUT.mkdir(exist_ok=True)
    for name, keys in SCREENS.items():
        target = OUT / f"{name}.svg"
        target.write_text(asyncio.run(draw(paths, keys)), encoding="utf-8")
        print(target)


if __name__ == "__main__":
    main()
