"""The page: that it has what the records have, in well-formed HTML that needs nothing else and trusts nobody."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from mgspmv.errors import PipelineError
from mgspmv.report import render_report
from mgspmv.report.record import RunRecord, StepOutcome, StepRecord, read_record
from tests.support.records import BEGAN, KEY, MARKUP, make_run

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """The elements of a page with their texts; fails where one is not closed in turn."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.texts: dict[str, list[str]] = {}
        """By element, of those that hold nothing but text."""
        self._open: list[str] = []
        self._said: list[list[str]] = []
        self._rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), (tag, attrs)
        if tag not in VOID:
            self._open.append(tag)
            self._said.append([])
        if tag == "tr":
            self._rows.append([])
        elif tag == "table":
            self._rows = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, (tag, self.getpos())
        text = "".join(self._said.pop()).strip()
        self.texts.setdefault(tag, []).append(text)
        if tag in ("th", "td"):
            self._rows[-1].append(text)
        elif tag == "table":
            self.tables.setdefault(self.texts["caption"][-1], []).extend(self._rows)

    def handle_data(self, data: str) -> None:
        if self._said:
            self._said[-1].append(data)

    def list(self, tag: str, attribute: str) -> list[str]:
        return [value for name, attrs in self.elements if name == tag and (value := attrs.get(attribute)) is not None]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunRecord:
    return make_run(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def page(run) -> Page:
    return Page(render_report(run))


def make_step(kind: Any = "pagerank", name: str = "g/run", **fields: Any) -> StepOutcome:
    given = {"options": {}, "matrix": {}, "seconds": {}, "memory": {}, "began": "", "ended": ""} | fields
    return StepOutcome(name, kind, "made", 1.0, StepRecord(KEY, kind, name, {}, [], **given))


def render(*steps: StepOutcome, **fields: Any) -> Page:
    given = {"began": BEGAN, "elapsed_s": 1.0, "version": "0"} | fields
    return Page(render_report(RunRecord("r", "r.toml", {}, **given, steps=list(steps))))


def test_it_needs_nothing_else(run):
    text = render_report(run)
    page = Page(text)
    assert text.startswith("<!doctype html>")
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert all(href.startswith("#") for href in page.list("a", "href"))
    assert all(href.startswith("#") for href in page.list("use", "xlink:href"))
    [style] = page.texts["style"]
    assert "url(" not in style
    assert "@import" not in style


def test_markup_is_text(run):
    text = render_report(replace(run, name=MARKUP, file=MARKUP))
    assert "<script" not in text
    assert "alert(&#39;web" in text
    page = Page(text)
    assert page.texts["title"][0] == MARKUP
    assert any(MARKUP in title for title in page.list("td", "title"))
    assert any("<script>" in row[1] for row in page.tables["web"])
    assert any(MARKUP in tip for tip in page.list("td", "title"))


def test_it_is_the_same_of_what_was_read_again(run):
    assert render_report(read_record(RunRecord, run.to_dict(), "run.json")) == render_report(run)


def test_summary(page, run):
    assert page.texts["h1"][0].startswith("nightly")
    assert "✕ incomplete" in page.texts["span"]
    facts = dict(list(zip(page.texts["dt"], page.texts["dd"], strict=True))[:6])
    assert facts["began"] == "2026-03-04 01:02:03 UTC"
    assert facts["took"] == "83.4 s"
    assert facts["program"] == "mgspmv 0.1.0"
    assert facts["versions"] == "python 3.12.3, numpy 2.1.0"
    assert facts["hardware"].startswith("node-7, x86_64, 8 processors, 64 GB; ")
    assert {"8 made, 1 kept, 1 failed, 2 skipped", "6 successful, 146 iterations"} <= set(page.texts["span"])
    assert page.texts["strong"][-3:] == ["web/cut off", "broken", "broken/alpha=0.5, broken/alpha=0.8"]
    assert any(text.endswith("none.txt: there is no file of this name") for text in page.texts["p"])
    assert "needs the step 'broken', which failed" in page.texts["p"]


def test_runs(page, run):
    head, *rows = page.tables["Runs"]
    assert head == [
        "Run", "State", "alpha", "tol", "precision", "max_iter", "Iterations", "Status", "L1 error at most", "Time",
        "Edges/s",
    ]  # fmt: skip
    assert len({len(row) for row in [head, *rows]}) == 1
    named = {row[0]: row for row in rows}
    record = next(step.record for step in run.steps if step.name == "web/damping/alpha=0.95")
    iterations = str(record.result["iterations"])
    assert named["web/damping/alpha=0.95"][1:8] == ["made", "0.95", "1e-8", "exact", "500", iterations, "converged"]
    assert named["web/cut off"][6:8] == ["30", "max iter"]
    assert named["broken/alpha=0.5"][1:] == ["skipped", *["–"] * 9]
    assert page.tables["Other steps"][2][:5] == ["rmat", "kept", "matrix", "1,024", "6,706"]
    assert page.tables["Other steps"][3] == ["broken", "failed", "matrix", *["–"] * 4]


def test_charts(page):
    titles = page.texts["figcaption"]
    assert titles == ["web: convergence", "rmat: convergence"]
    drawings = [attrs for tag, attrs in page.elements if tag == "svg" and attrs.get("role") == "img"]
    assert [attrs["aria-label"] for attrs in drawings] == [title for title in titles for _ in ("wide", "narrow")]
    assert len(page.texts["desc"]) == len(drawings)
    assert all(len(text) > 30 for text in page.texts["desc"])
    assert {"tol 1e-8", "tol 1e-10", "tol 1e-7"} <= set(page.texts["text"])
    assert {"damping/alpha=0.5", "nightly"} <= set(page.texts["text"])


def test_the_highest(page, run):
    rows = page.tables["web"]
    assert rows[0] == ["", "damping/alpha=0.5", "rank", "damping/alpha=0.85", "rank", "damping/alpha=0.95", "rank"]
    record = next(step.record for step in run.steps if step.name == "web/damping/alpha=0.85")
    assert [row[3] for row in rows[2:]] == [name for name, *_ in record.top[1:]]
    assert [float(row[4]) for row in rows[1:]] == pytest.approx([rank for _, rank, *_ in record.top], rel=1e-4)
    assert page.tables["web, continued"][0] == ["", "cut off", "rank", "nightly", "rank"]


def test_the_highest_of_one_run_are_drawn_and_come_first():
    top = [("a", 0.5), ("b", 0.125), ("c", -0.1)]
    fields = {"options": {"alpha": 0.85}, "matrix": {"shape": [4, 4], "nnz": 8}, "seconds": {"product": 2.0}}
    result = {"status": "converged", "iterations": 9, "error_bound_l1": 1e-7, "changes": [0.5, 0.1]}
    page = render(make_step(top=top, result=result, **fields))
    assert page.tables["g: run"] == [
        ["", "Vertex", "Rank", ""], ["1", "a", "0.5", ""], ["2", "b", "0.125", ""], ["3", "c", "-0.1", ""],
    ]  # fmt: skip
    assert page.list("span", "style") == ["width:100.0%", "width:25.0%", "width:0%"]
    assert page.list("section", "id") == ["highest", "convergence", "steps", "time", "provenance"]
    assert page.texts["strong"] == ["4 vertices", "9", "1e-7", "2 s"]
    assert {"8 edges", "converged", "36 edges/s"} <= set(page.texts["span"])


def test_comparison(page, run):
    head, row = page.tables["Agreement"]
    found = next(step.record for step in run.steps if step.record and step.record.comparison).comparison
    assert dict(zip(head, row, strict=True)) == {
        "Run": "web/nightly", "Before": "2026-03-03T01:02:03+00:00", "In both": "150", "New": "1", "Gone": "0",
        "Spearman": f"{found['spearman']:.5g}", "Kendall of the highest": "0.5", "L1": f"{found['l1']:.5g}",
        "Overlap": "90.0%",
    }  # fmt: skip
    _, *rows, more = page.tables["web/nightly: largest moves"]
    assert more == ["and 6 more"]
    for moved, shown in zip(found["moved"], rows, strict=False):
        change = moved[1] - moved[2]
        assert shown[1] == (f"▲ {change}" if change > 0 else f"▼ {-change}" if change else "=")
        assert shown[2:4] == [str(moved[1]), str(moved[2])]


def test_vertices_that_came_and_went():
    moved = [["a", None, 3, None, 0.1], ["b", 3, None, 0.1, None], ["c", 2, 2, 0.2, 0.2], ["d", 5000, 2, "NaN", 0.2]]
    page = render(make_step(comparison={"before": None, "spearman": None, "moved": moved}))
    rows = page.tables["g/run: largest moves"][1:]
    assert [row[1:4] for row in rows] == [
        ["new", "–", "3"], ["gone", "3", "–"], ["=", "2", "2"], ["▲ 4,998", "5,000", "2"],
    ]  # fmt: skip
    assert page.tables["Agreement"][1][1:] == ["–"] * 8


def test_provenance(page, run):
    source = page.tables["Sources"][1]
    made_from = run.steps[0].record.provenance["matrix"]["source"]
    assert source[0] == "web"
    assert source[2:4] == ["edge-list", made_from["sha256"]]
    assert ["web/nightly", "w.csv", "weights", KEY, "–"] in page.tables["Sources"]
    outputs = {row[1]: row[2] for row in page.tables["Outputs"][1:]}
    assert outputs["out/rmat/alone.parquet"] == run.steps[-5].record.outputs[0].digest
    assert page.texts["summary"] == [
        "Sources and outputs, with their checksums",
        *(step.name for step in run.steps if step.record),
        "Definition",
    ]
    *steps, definition = map(json.loads, page.texts["pre"])
    assert steps[0]["provenance"]["machine"]["host"] == "node-7"
    assert [step["options"].get("alpha") for step in steps[1:4]] == [0.5, 0.85, 0.95]
    orders = [step["provenance"]["matrix"]["options"]["order"] for step in steps if "matrix" in step["provenance"]]
    assert orders == ["none", "none"], "of the steps that made the matrices"
    assert definition == run.definition


def test_a_batch_of_many_vectors():
    vectors = [
        {"label": f"<b>{k}</b>", "alpha": 0.85, "status": "converged", "iterations": 9, "error_bound_l1": 1e-7}
        for k in range(40)
    ]
    vectors[1] |= {"status": "max_iter", "changes": [0.5, 0.1], "pace": "slowest"}
    vectors[7] |= {"changes": [0.4, "NaN"]}
    fields = {"options": {"tol": 1e-6}, "matrix": {"shape": [4, 4], "nnz": 8}, "top": [("a", 0.5)]}
    batch = make_step("batch", "g/seeds", result={"vectors": vectors}, **fields)
    page = render(batch)
    rows = page.tables["Vectors of g/seeds"]
    assert rows[1] == ["<b>0</b>", "0.85", "converged", "9", "1e-7"]
    assert rows[-1] == ["and 25 more"]
    assert page.tables["g: seeds, <b>0</b>"][0] == ["", "Vertex", "Rank", ""]
    assert "0 successful, 360 iterations" in page.texts["span"]
    assert {"seeds, <b>1</b> (slowest)", "seeds, <b>7</b>"} <= set(page.texts["text"])
    assert "seeds, <b>1</b> (slowest): 0.5 at 1 to 0.1 at 2." in page.texts["desc"][0]


def test_runs_that_did_not_converge():
    """Failed, and shown as far as they came."""
    result = {"status": "max_iter", "iterations": 2, "changes": [0.5, 0.1], "error_bound_l1": 0.3}
    fields = {"options": {"tol": 1e-6, "max_iter": 2}, "matrix": {"shape": [4, 4], "nnz": 8}, "seconds": {"product": 2}}
    failed = replace(make_step(name="g/short", result=result, **fields), state="failed", error="it ended as max_iter")
    page = render(failed, replace(make_step(name="g/none"), state="failed", record=None, error="no such file"))
    rows = {row[0]: row[1:] for row in page.tables["Runs"][1:]}
    assert rows["g/short"] == ["failed", "1e-6", "2", "max iter", "0.3", "2 s", "8"]
    assert rows["g/none"] == ["failed", *["–"] * 6]
    assert "short: 0.5 at 1 to 0.1 at 2." in page.texts["desc"][0]
    assert page.texts["strong"][-2:] == ["g/short", "g/none"]
    assert {"it ended as max_iter", "no such file"} <= set(page.texts["p"])
    assert "Outputs" not in page.tables


@pytest.mark.parametrize("option", ["norm", "tol_mode"])
def test_tolerances_of_each_mode(option):
    steps = [
        make_step(
            name=f"g/{mode}", options={"tol": tol, option: mode}, matrix={"shape": [50, 50]},
            result={"changes": [0.5, 0.1], "status": "converged"},
        )
        for mode, tol in [("l1", 0.2), ("l1_per_node", 0.01), ("relative", 0.2), ("fixed", None)]
    ]  # fmt: skip
    page = render(*steps)
    assert sorted(text for text in page.texts["text"] if text.startswith("tol ")) == ["tol 0.2"] * 2 + ["tol 0.5"] * 2
    assert "change (L1, relative to the rank)" in page.texts["text"]


def test_seconds_by_phase(page, run):
    head, *rows = page.tables["Runs: time by phase"]
    assert head[0] == "Step"
    assert [row[0] for row in rows] == [step.name for step in run.steps if step.record and step.kind == "pagerank"]
    assert {"load", "product"} <= set(head)
    shown = render(
        make_step(seconds={"save": 2.0, "load": 0.5, "other": 1.0}), make_step(name="g/b", seconds={"load": 3})
    )
    assert shown.tables["Runs: time by phase"] == [
        ["Step", "load", "save", "other"], ["g/run", "500 ms", "2 s", "1 s"], ["g/b", "3 s", "–", "–"],
    ]  # fmt: skip
    assert page.tables["Other steps: time by phase"][0] == ["Step", "read", "sort", "write"]


def test_memory_by_worker():
    memory = {
        "planned_bytes": [100, 100], "held_bytes": [500, 90], "device_bytes": [0, 250], "host_peak_bytes": [900, 900],
    }  # fmt: skip
    page = render(make_step(memory=memory))
    assert page.tables["Memory"][1:] == [
        ["g/run", "0", "100 B", "500 B", "–", "900 B"], ["g/run", "1", "100 B", "90 B", "250 B", "900 B"],
    ]  # fmt: skip


def test_values_that_no_run_writes():
    odd = {"result": {"status": "ended"}, "provenance": {"versions": 3}}
    for name, value in odd.items():
        with pytest.raises(PipelineError, match=r"^r\.toml: the record of the run is damaged \(.*; restore a copy, or"):
            render(make_step(**{name: value}))


def test_a_run_of_no_steps():
    page = render(began="", elapsed_s=0.0)
    assert page.list("section", "id") == ["provenance"]
    assert "None recorded." in page.texts["p"]


def test_long_tables_and_long_lists_are_cut():
    steps = [StepOutcome(f"g/{k}", "pagerank", "skipped", 0.0, None, "needs the step 'g'") for k in range(60)]
    page = render(*steps)
    assert len(page.tables["Runs"]) == 52
    assert page.tables["Runs"][-1] == ["and 10 more"]
    assert page.texts["strong"][-1] == "g/0, g/1, g/2, g/3, g/4, g/5, g/6, g/7 and 52 more"


def test_numbers_that_are_not_finite_are_read():
    step = make_step(
        result={"status": "non_finite", "iterations": 2, "changes": [0.5, "NaN"], "error_bound_l1": "Infinity"},
        options={"alpha": 0.85, "tol": 1e-6}, summary={"min": "NaN"},
        top=[("a", math.nan)],
    )  # fmt: skip
    page = render(step)
    assert page.tables["Runs"][1][4:7] == ["2", "non finite", "∞"]
    assert page.tables["g: run"][1] == ["1", "a", "–", ""]
    assert page.list("span", "style") == ["width:0%"]
    assert "points not drawn because they are not positive, not finite or out of range: 1." in page.texts["p"]
