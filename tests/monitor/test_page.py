"""The page without a browser: what its figures have, and what is sent of it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from bokeh.document import Document
from bokeh.plotting import figure

from mgspmv.monitor.page import COLUMNS, PHASES, Page, describe_run
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


def show(*messages, chosen=None):
    runs = Runs()
    for message in messages:
        runs.hear(message)
    page = Page(runs, chosen)
    page.update()
    return runs, page, Sent(page.root)


def get_columns(source):
    return {name: np.asarray(column).tolist() for name, column in source.data.items()}


def read_rows(sent):
    """The cells of the table by heading, and whether each run is the one that is shown."""
    text = sent.find("runs").text
    cells = [re.findall(r"<t[hd][^>]*>(?:<a [^>]*>)?(.*?)(?:</a>)?</t[hd]>", row) for row in text.split("<tr")]
    head, *rows = cells[1:]
    _, *chosen = re.findall('<tr( class="chosen")?>', text)
    return [dict(zip(head, row, strict=True)) for row in rows], [bool(style) for style in chosen]


def read_facts(text):
    return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text))


def test_before_the_first_run():
    _, page, sent = show()
    assert "No runs yet." in sent.find("runs").text
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


def test_the_last_run_is_shown_unless_the_address_names_another():
    said = [*(begin(name) for name in "abcd"), iterate(0, 1, 2, "b"), end("c")]
    runs, page, sent = show(*said)
    rows, is_shown = read_rows(sent)
    assert [row["run"] for row in rows] == ["d", "c", "b", "a"]
    assert [row["state"] for row in rows] == ["start", "converged", "iterate", "start"]
    assert is_shown == [True, False, False, False]
    assert 'href="pagerank?run=b"' in sent.find("runs").text
    runs.hear(begin("e"))
    page.update()
    assert sent.find("head").text.startswith("<h2>pagerank e</h2>")
    assert get_columns(sent.find("change")) == {"iteration": [], "change": []}

    runs, page, sent = show(*said, chosen="b")
    for name in "ef":
        runs.hear(begin(name))
        page.update()
        assert sent.find("head").text.startswith("<h2>pagerank b</h2>")
    assert len(sent.find("change").data["change"]) == 2
    assert read_rows(sent)[1] == [False] * 4 + [True, False]


def test_a_named_run_that_is_unknown_or_kept_no_longer_makes_room_for_the_last():
    runs, page, sent = show(begin("a"), end("a"), begin("b"), chosen="a")
    assert sent.find("head").text.startswith("<h2>pagerank a</h2>")
    for k in range(RUNS_KEPT):
        runs.hear(begin(f"r{k}"))
    page.update()
    assert sent.find("head").text.startswith(f"<h2>pagerank r{RUNS_KEPT - 1}</h2>")


def test_table_and_description_have_the_same_numbers():
    runs, page, sent = show(begin(), iterate(0, 1, 3), iterate(1, 1, 3))
    for first in range(4, 40, 3):
        for rank in (0, 1):
            runs.hear(iterate(rank, first, 3))
            page.update()
            [row], _ = read_rows(sent)
            facts = read_facts(sent.find("head").text)
            assert row["iterations"] == facts["iterations"]
            assert facts["change"].split(" ")[0] == row["change"]
            assert facts["rate"] == f"{row['iterations/s']} iterations/s, {row['edges/s']} edges/s"
            assert facts["state"] == row["state"]


def test_progress_and_the_time_left():
    runs, page, sent = show(begin(), iterate(0, 1, 6), iterate(1, 1, 6))
    text = sent.find("head").text
    assert '<progress max="20" value="6"></progress>' in text, "0.5^20 is below the threshold, 1e-6"
    assert "<p>iteration 6 of about 20, 24.5 s left</p>" in text, "14 iterations of 1.75 s"
    assert read_rows(sent)[0][0]["time left"] == "24.5 s"
    runs.hear(end())
    page.update()
    assert "progress" not in sent.find("head").text
    assert read_rows(sent)[0][0]["time left"] == ""


@pytest.mark.parametrize(
    ("options", "threshold", "said"),
    [
        ({"max_iter": 10}, 1e-6, "iteration 6 of at most 10, 7 s left"),
        ({"max_iter": 100}, 1e-6, "iteration 6 of about 20, 24.5 s left"),
        ({"max_iter": 10}, 0.0, "iteration 6 of 10, 7 s left"),
        ({}, 0.0, "iterate"),
    ],
)
def test_the_end_of_a_run_is_predicted(options, threshold, said):
    _, _, sent = show(begin() | {"options": options, "threshold": threshold}, iterate(0, 1, 6), iterate(1, 1, 6))
    assert f"<p>{said}</p>" in sent.find("head").text


def test_devices_are_shown_if_there_are_any():
    for n_bytes in (0, 1000):
        message = begin()
        for worker in message["workers"]:
            worker["device_bytes"] = n_bytes
        _, page, sent = show(message, iterate(0, 1, 6))
        drawn = [model for model in page.root.references() if getattr(model, "name", None) == "device"]
        assert len(drawn) == 2  # bars and dashes
        assert {model.visible for model in drawn} == {n_bytes > 0}
        assert get_columns(sent.find("workers"))["left"] == ([-0.2, 0.8] if n_bytes else [0, 1])


def test_neighboring_figures_have_equal_axes():
    _, page, _ = show(begin())
    ranges = {}
    for drawn in page.root.select({"type": figure}):
        ranges.setdefault(drawn.xaxis.axis_label, []).append(drawn.x_range)
    assert {label: (len(own), len({*own})) for label, own in ranges.items()} == {"iteration": (2, 1), "worker": (2, 1)}


def test_what_users_wrote_is_text():
    message = begin("<b>", operation="<script>")
    message["matrix"]["url"] = "/data/<img src=x>.zarr"
    runs, _, sent = show(message, end("<b>", "failed", "ValueError: <i>"))
    for text in (describe_run(runs.by_id["<b>"]), sent.find("runs").text):
        assert not {tag for tag in ("<script>", "<img", "<i>", "<b>") if tag in text}
        assert "ValueError: &lt;i&gt;" in text
    assert 'href="pagerank?run=%3Cb%3E"' in sent.find("runs").text
    assert [*read_rows(sent)[0][0]] == [heading for name, heading in COLUMNS.items()]


def test_the_head_says_how_long_ago_a_checkpoint_was_written():
    runs = Runs()
    for at, message in enumerate([begin(), iterate(0, 1, 8), checkpoint(4), checkpoint(8), iterate(0, 9, 8)]):
        runs.hear(message, 30.0 * at)
    assert read_facts(describe_run(runs.by_id["r"]))["checkpoints"] == "2, last after iteration 8, 30 s ago"
    runs.hear(begin("without"))
    assert "checkpoints" not in describe_run(runs.by_id["without"])
