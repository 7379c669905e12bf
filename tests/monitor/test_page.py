"""The page without a browser: what its figures have, and what is sent of it."""

from __future__ import annotations

import numpy as np
import pytest
from bokeh.document import Document

from mgspmv.monitor.page import PHASES, Page, describe_run
from mgspmv.monitor.runs import RUNS_KEPT, Runs
from tests.support.messages import begin, checkpoint, end, iterate


class Sent:
    """A document, and what it would send to a browser."""

    def __init__(self, root):
        self.document = Document()
        self.document.add_root(root)
        self.events = []
        self.document.on_change(self.events.append)

    def take(self):
        taken, self.events[:] = [*self.events], []
        return taken

    def find(self, name):
        return self.document.get_model_by_name(name)


def show(*messages):
    runs = Runs()
    for message in messages:
        runs.hear(message)
    page = Page(runs)
    page.update()
    return runs, page, Sent(page.root)


def get_columns(source):
    return {name: np.asarray(column).tolist() for name, column in source.data.items()}


def test_before_the_first_run():
    _, page, sent = show()
    assert sent.find("said").text.startswith("No runs yet.")
    assert not sent.find("shown").visible
    page.update()
    assert sent.take() == []


def test_figures_have_what_the_run_has():
    _, _, sent = show(begin(), iterate(0, 1, 6), iterate(1, 1, 6, seconds=(2.0, 0.5, 0.25)))
    assert get_columns(sent.find("change")) == {
        "iteration": [1, 2, 3, 4, 5, 6],
        "change": [0.5**i for i in range(1, 7)],
    }
    assert get_columns(sent.find("rate")) == {
        "iteration": [6],
        "million_edges_per_s": pytest.approx([300 / 1.75 / 1e6]),
    }
    workers = get_columns(sent.find("workers"))
    assert (workers["rank"], workers["name"]) == ([0, 1], ["w0", "w1"])
    assert [workers[phase] for phase in PHASES] == [[1000, 2000], [500, 500], [250, 250]]
    assert (workers["host"], workers["host_plan"]) == ([5e-6, 5.001e-6], [1e-6, 1.001e-6])
    assert sent.find("shown").visible


def test_a_running_run_is_shown_on_and_nothing_is_sent_without_news():
    runs, page, sent = show(begin(), iterate(0, 1, 50), iterate(1, 1, 50))
    for rank in (0, 1):
        runs.hear(iterate(rank, 51, 3))
    page.update()
    assert "change" in {event.model.name for event in sent.take()}
    assert len(sent.find("change").data["iteration"]) == 53
    page.update()
    assert sent.take() == []


def test_a_run_is_chosen_in_the_table_and_stays_chosen():
    runs, page, sent = show(*(begin(name) for name in "abcd"), iterate(0, 1, 2, "b"), end("c"))
    rows = sent.find("runs")
    assert rows.data["run"] == ["d", "c", "b", "a"]
    assert rows.data["state"] == ["start", "converged", "iterate", "start"]
    rows.selected.indices = [2]
    assert sent.find("head").text.startswith("<b>pagerank b</b>")
    assert len(sent.find("change").data["change"]) == 2
    runs.hear(begin("e"))
    page.update()
    assert rows.selected.indices == [3]
    assert sent.find("head").text.startswith("<b>pagerank b</b>")
    rows.selected.indices = []
    assert sent.find("head").text.startswith("<b>pagerank e</b>")
    assert get_columns(sent.find("change")) == {"iteration": [], "change": []}


def test_a_chosen_run_that_is_kept_no_longer_makes_room_for_the_last():
    runs, page, sent = show(begin("a"), end("a"), begin("b"))
    sent.find("runs").selected.indices = [1]
    assert sent.find("head").text.startswith("<b>pagerank a</b>")
    for k in range(RUNS_KEPT):
        runs.hear(begin(f"r{k}"))
    page.update()
    assert sent.find("head").text.startswith(f"<b>pagerank r{RUNS_KEPT - 1}</b>")


def test_what_users_wrote_is_text():
    message = begin("<b>", operation="<script>")
    message["matrix"]["url"] = "/data/<img src=x>.zarr"
    runs, _, _ = show(message, end("<b>", "failed", "ValueError: <i>"))
    text = describe_run(runs.by_id["<b>"])
    assert not {"<script>", "<img", "<i>"} & {tag for tag in ("<script>", "<img", "<i>") if tag in text}
    assert "ValueError: &lt;i&gt;" in text


def test_the_head_says_how_long_ago_a_checkpoint_was_written():
    runs = Runs()
    for at, message in enumerate([begin(), iterate(0, 1, 8), checkpoint(4), checkpoint(8), iterate(0, 9, 8)]):
        runs.hear(message, 30.0 * at)
    assert "<b>checkpoints</b> 2, last after iteration 8, 30 s ago" in describe_run(runs.by_id["r"])
    runs.hear(begin("without"))
    assert "checkpoints" not in describe_run(runs.by_id["without"])
