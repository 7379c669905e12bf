"""The page in a headless Chromium, during a run on four worker processes."""

from __future__ import annotations

import io
import json
import re
import threading
from pathlib import Path
from urllib.parse import urljoin

import matplotlib.image
import numpy as np
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.monitor.page import LINE
from tests.support.browser import find_browser, needs_browser, start_browser
from tests.support.clusters import start_cluster
from tests.support.hearing import on_events
from tests.support.waiting import HANG_S, wait_for

pytestmark = needs_browser

BUILD = Path(__file__).parents[2] / "build"
"""Where the picture is kept."""
ITERATIONS = 1500


class Reader:
    """Who has the page open."""

    def __init__(self, browser, url):
        self.browser = browser
        browser.visit(url, 1400)
        self.wait_for("window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].get_model_by_name('runs').text")

    def wait_for(self, script):
        """The value of an expression, once it is not false."""
        assert wait_for(lambda: self.browser.evaluate(script)), f"never came: {script}"
        return self.browser.evaluate(script)

    def list_links(self):
        """Addresses of the runs in the table, the newest first."""
        links = re.findall(r'href="([^"]+)"', self.get_text("runs"))
        return [urljoin(self.browser.evaluate("location.href"), link) for link in links]

    def get_text(self, name):
        return self.browser.evaluate(f"Bokeh.documents[0].get_model_by_name('{name}').text")

    def get_column(self, source, name):
        return self.browser.evaluate(f"Array.from(Bokeh.documents[0].get_model_by_name('{source}').data.{name})")

    def photograph(self, is_drawn):
        """The PNG of the page once its pixels (height, width, 3) of 0 to 1 are so; `is_drawn` says of what."""
        taken = []

        def look():
            taken.append(self.browser.photograph())
            return is_drawn(matplotlib.image.imread(io.BytesIO(taken[-1]))[:, :, :3])

        assert wait_for(look), "it was never drawn"
        return taken[-1]

    def list_errors(self):
        """What the console calls an error."""
        said = [json.loads(text) for text in self.browser.complaints if text.startswith("{")]
        return [
            each
            for each in said
            if each.get("type") in ("error", "assert")
            or "exceptionDetails" in each
            or each.get("entry", {}).get("level") == "error"
        ]


class Running(threading.Thread):
    """A run that stops in its first superstep until it is let go on."""

    def __init__(self, matrix):
        super().__init__()
        self._matrix = matrix
        self.may_go_on = threading.Event()
        self.solution = None

    def run(self):
        asked = {"norm": "fixed", "max_iter": ITERATIONS, "alpha": 0.99, "personalization": {0: 1.0}}
        self.solution = mg.pagerank(
            self._matrix, **asked, progress=on_events(lambda event: self.may_go_on.wait(HANG_S))
        )


@pytest.fixture(scope="module")
def cluster():
    with start_cluster(4, dashboard_address="127.0.0.1:0") as started:
        yield started


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A ring, along which the rank of one vertex goes round for long."""
    path, n = tmp_path_factory.mktemp("browser") / "ring.zarr", 4096
    mg.ingest((np.arange(n), np.roll(np.arange(n), -1)), path, kind="graph", n_vertices=n)
    return path


def find_share(picture, colour):
    """Of the pixels, those of about this colour."""
    wanted = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    return float((np.abs(picture - wanted).max(axis=2) < 0.03).mean())


def test_a_run_is_seen_while_it_runs_and_afterwards(cluster, store, tmp_path):
    url = f"http://127.0.0.1:{cluster.scheduler.http_server.port}/pagerank"
    with Client(cluster, set_as_default=False) as client, mg.open_matrix(store).distribute(client) as D:
        before = mg.pagerank(D, tol=1e-6, personalization={0: 1.0})
        with start_browser(find_browser(), tmp_path / "profile") as browser:
            reader = Reader(browser, url)
            check_numbers(reader, before, D)
            check_growth(reader, D)
            png = reader.photograph(lambda picture: find_share(picture, LINE) > 1e-4 and picture.mean() > 0.8)
            BUILD.mkdir(exist_ok=True)
            (BUILD / "dashboard.png").write_bytes(png)
            check_widths(reader, url)
            reader = Reader(browser, reader.list_links()[1])
            count = "Bokeh.documents[0].get_model_by_name('change').data.change.length"
            reader.wait_for(f"{count} == {before.iterations}")
            assert reader.get_column("change", "change") == list(before.changes)
            check_navigation(reader, url)
            assert reader.list_errors() == []


def check_growth(reader, D):
    """A run's curves become longer while it runs; in the end they are its solution."""
    running = Running(D)
    running.start()
    try:
        assert wait_for(lambda: len(reader.list_links()) == 2)
        reader.wait_for("Bokeh.documents[0].get_model_by_name('head').text.includes('<dd>iterate</dd>')")
        first = reader.wait_for("Bokeh.documents[0].get_model_by_name('change').data.change.length")
        assert running.solution is None
    finally:
        running.may_go_on.set()
    running.join(HANG_S)
    assert running.solution is not None
    reader.wait_for("Bokeh.documents[0].get_model_by_name('head').text.includes('<dd>completed</dd>')")
    assert len(reader.get_column("change", "change")) > first
    check_numbers(reader, running.solution, D)


def check_numbers(reader, solution, D):
    """What the browser shows is what the solution says."""
    head = reader.wait_for("Bokeh.documents[0].get_model_by_name('head').text")
    assert f"<dt>iterations</dt><dd>{solution.iterations:,}</dd>" in head
    assert f"<dt>change</dt><dd>{solution.changes[-1]:.3e}" in head
    row = reader.get_text("runs").split("<tr")[2]
    assert f"<td>{solution.iterations:,}</td><td>{solution.changes[-1]:.3e}</td>" in row
    iterations = reader.get_column("change", "iteration")
    assert iterations[-1] == solution.iterations
    assert reader.get_column("change", "change") == [solution.changes[i - 1] for i in iterations]
    assert reader.get_column("workers", "name") == [str(member.name) for member in D.members]
    for phase in ("product", "exchange", "wait"):
        wanted = 1e3 * np.mean([getattr(event, f"{phase}_s") for event in solution.events], axis=0)
        assert reader.get_column("workers", phase) == pytest.approx(wanted)
    used = reader.get_column("workers", "host")
    assert used == pytest.approx([n_bytes / 1e9 for n_bytes in solution.memory["host_peak_bytes"]])


def check_widths(reader, url):
    """At both widths nothing is wider than the window."""
    for width in (1400, 500):
        reader.browser.visit(url, width)
        reader.wait_for("window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle")
        assert reader.browser.evaluate("document.documentElement.scrollWidth") <= width
        (BUILD / f"dashboard-{width}.png").write_bytes(reader.photograph(lambda _: True))


def check_navigation(reader, url):
    reader.browser.visit(url.replace("pagerank", "workers"), 1400)
    links = reader.browser.evaluate("[...document.querySelectorAll('.navbar a')].map(a => a.href)")
    assert url in links
