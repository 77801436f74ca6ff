"""Make the pictures of the README with the project itself: needs a fleet that is up.

Run: octad up && make pictures
     python docs/pictures/make.py RUN RUN     only the comparison, of two runs that there are
Submits two runs of the quickstart that differ in one value, draws the live view in the middle of
the first, and has Debian's Chromium (apt-get install chromium) open MLflow's comparison of both.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import sync_playwright
from rich.console import Console

from octad.cli import live

HERE = Path(__file__).parent
OCTAD = Path(sys.executable).parent / "octad"
RATES = ["6e-3", "2e-3"]
COMPARED = ["base_tuning_perplexity", "tuned_tuning_perplexity"]
LIMIT_S = 600


def octad(*arguments: str) -> str:
    """The standard output of one command."""
    return subprocess.run(
        [OCTAD, *arguments], check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S
    ).stdout


def shown(run: str) -> Any:
    """The run as JSON."""
    return json.loads(octad("run", run, "--json"))


def is_half_way(run: Any) -> bool:
    """Whether pretraining is under way, so that the live view has something to show."""
    progress = next(s for s in run["stages"] if s["name"] == "pretrain")["progress"]
    return bool(progress) and progress["step"] > progress["total"] / 3


def draw_terminal(run: str) -> None:
    """The live view of `octad submit --follow`, as it stands in the middle of the run."""
    while not is_half_way(view := shown(run)):
        time.sleep(0.5)
    console = Console(record=True, width=112, file=io.StringIO())
    console.print(live.render(view, round(time.time() * 1000)))
    drawn = console.export_svg(title="octad submit --follow")
    # Fonts from elsewhere would be fetched by whoever looks; every reader has one of his own.
    (HERE / "terminal.svg").write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL))


def draw_comparison(runs: list[Any]) -> None:
    """MLflow's page that compares the two runs."""
    address = json.loads(octad("fleet", "--json"))["tracker_url"].rstrip("/")
    experiment = runs[0]["mlflow_url"].partition("/experiments/")[2].partition("/")[0]
    ids = quote(json.dumps([run["mlflow_run_id"] for run in runs]))
    url = f"{address}/#/compare-runs?runs={ids}&experiments={quote(json.dumps([experiment]))}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium",
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        page = browser.new_page(viewport={"width": 1280, "height": 1600})
        page.goto(url)
        for value in COMPARED:
            page.get_by_text(value).first.wait_for(timeout=60_000)
        for switch in page.get_by_text("Show diff only").all():
            switch.click()
        page.screenshot(path=str(HERE / "mlflow-compare.png"))
        browser.close()


def main() -> None:
    """Make both pictures, or only the comparison of the runs that are named."""
    if sys.argv[1:]:
        draw_comparison([shown(run) for run in sys.argv[1:]])
        return
    ids: list[str] = []
    for rate in RATES:
        change = f"pretrain.optimizer.lr={rate}"
        run = octad("submit", change, f"title=learning rate {rate}").split()[-1]
        if not ids:
            draw_terminal(run)
        octad("run", run, "--follow")
        ids.append(run)
    draw_comparison([shown(run) for run in ids])


if __name__ == "__main__":
    main()
