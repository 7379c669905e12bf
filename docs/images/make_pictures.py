"""Make the pictures of this folder: `PYTHONPATH=. python docs/images/make_pictures.py`, which takes a minute.

    dashboard.png                        page of a run in progress on four workers
    report.png, report-dark.png          upper part of the report of a run

It needs Chromium. The run is stopped at an iteration while its page is photographed.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distributed import Client
from PIL import Image

import mgspmv as mg
from mgspmv.cluster.connect import start_local
from mgspmv.model import Event
from mgspmv.monitor.events import find_dashboard
from mgspmv.report import load_run, render_report
from tests.support.browser import Browser, find_browser, start_browser

FOLDER = Path(__file__).parent
WIDTH = 1200
REPORT_HEIGHT = "document.querySelector('#convergence').getBoundingClientRect().bottom + 16"
"""Pixels of the report that are shown, to the end of its chart."""
STOP_AT = 400
"""Iteration at which the run is photographed."""
START_S = 300.0
"""Seconds for the run to reach it on a busy machine."""
SETTLE_S = 3.0
"""Seconds until a page is complete: its state is updated each second, and figures are drawn after that."""


def main() -> None:
    program = find_browser()
    if program is None:
        raise SystemExit("make_pictures.py needs Chromium")
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        start_browser(program, Path(folder) / "profile") as browser,
    ):
        mg.generate("rmat", "web.zarr", scale=18, edge_factor=16, seed=1)
        mg.generate("stencil2d", "grid.zarr", nx=400, ny=400, kind="graph")
        photograph_report(browser)
        photograph_dashboard(browser)


def photograph_report(browser: Browser) -> None:
    with mg.open("web.zarr") as A:
        mg.pagerank(A, tol=1e-10)  # compiles the kernels
        mg.pagerank(A, tol=1e-10).save("ranks.parquet")
    page = Path("report.html")
    page.write_text(render_report(load_run("ranks.parquet")), encoding="utf-8")
    for scheme, name in (("light", "report.png"), ("dark", "report-dark.png")):
        browser.show(page, WIDTH, scheme=scheme)
        save(
            browser,
            name,
            browser.evaluate("document.querySelector('#convergence').getBoundingClientRect().bottom + 16"),
        )


class StoppedError(Exception):
    """End of a run that was photographed."""


def rank_slowly(client: Client, progress: Callable[[Any], None]) -> None:
    options: dict[str, Any] = {"alpha": 0.99, "personalization": {0: 1.0}, "tol": 1e-8, "max_iter": 3000}
    with contextlib.suppress(StoppedError):
        mg.pagerank(mg.open("grid.zarr").on(client), **options, weight=False, progress=progress)


def photograph_dashboard(browser: Browser) -> None:
    reached, is_done = threading.Event(), threading.Event()

    def stop(news: Any) -> None:
        if isinstance(news, Event) and news.iteration >= STOP_AT:
            reached.set()
            is_done.wait()
            raise StoppedError

    with start_local(4, 1) as cluster, Client(cluster, set_as_default=False) as client:
        url = find_dashboard(client)
        assert url is not None
        mg.pagerank(mg.open("web.zarr").on(client), tol=1e-8)
        ranking = threading.Thread(target=rank_slowly, args=(client, stop))
        ranking.start()
        try:
            assert reached.wait(START_S)
            browser.visit(url, WIDTH)
            time.sleep(SETTLE_S)
            save(browser, "dashboard.png")
        finally:
            is_done.set()
            ranking.join()


def save(browser: Browser, name: str, height: float | None = None) -> None:
    """Save a picture of the page, in 256 colors, which its flat areas need; only edges of text lose shades."""
    picture = Image.open(io.BytesIO(browser.photograph())).convert("RGB")
    picture = picture.crop((0, 0, picture.width, round(height or picture.height)))
    picture.quantize(256).save(FOLDER / name, optimize=True)
    print(f"{name}: {picture.width} x {picture.height}, {(FOLDER / name).stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
