"""The page in a headless Chromium: nothing is wider than the window, on other text, unreadable, or fetched."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mgspmv.report import render_report
from tests.support.browser import Browser, find_browser, needs_browser, start_browser
from tests.support.records import make_run

pytestmark = needs_browser

LONG = "a-name-without-any-place-to-break-" * 8

OVERFLOWING = """
[...document.querySelectorAll('main *')].filter(e => !e.closest('.table, svg'))
    .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 80))
"""
"""What is wider than the window; tables have bars to scroll by."""

COVERED = """
[...document.querySelectorAll('svg[role=img]')].flatMap(svg => {
    const edge = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
    const outside = texts.filter(([, b]) => b.left < edge.left - 1 || b.top < edge.top - 1
        || b.right > edge.right + 1 || b.bottom > edge.bottom + 1);
    const pairs = texts.flatMap((a, k) => texts.slice(k + 1).map(b => [a, b]));
    const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top + 2 || b.bottom <= a.top + 2;
    const on = pairs.filter(([[, a], [, b]]) => !apart(a, b)).map(([[a], [b]]) => `${a} on ${b}`);
    return [...outside.map(([text]) => `${text} is cut off`), ...on].map(said => svg.ariaLabel + ': ' + said);
})
"""
"""Texts of drawings that are on each other, but for the pixels that lines of text have above and below, or that the
edge cuts off."""

DRAWN = "[...document.querySelectorAll('svg[role=img]')].filter(svg => svg.checkVisibility())"
"""Charts of the width of the window; the others are hidden."""

EMPTY = f"""
{DRAWN}
    .filter(svg => ![...svg.querySelectorAll('path[style*="var(--c"]')].some(e => e.getBoundingClientRect().width > 1))
    .map(svg => svg.ariaLabel)
"""

DIM = """
(() => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const luminance = colour => {
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    const ground = e => {
        for (; e; e = e.parentElement) {
            const colour = getComputedStyle(e).backgroundColor;
            if (colour !== 'rgba(0, 0, 0, 0)') return colour;
        }
        return 'white';
    };
    const hasText = e => !e.matches('title, desc, script')
        && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    return [...document.querySelectorAll('main *')].filter(hasText).map(e => {
        const style = getComputedStyle(e);
        const [a, b] = [luminance(e.closest('svg') ? style.fill : style.color), luminance(ground(e))];
        return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.outerHTML.slice(0, 80)];
    }).filter(([contrast]) => contrast < 4.5);
})()
"""
"""Texts whose contrast is less than 4.5, which the Web Content Accessibility Guidelines ask for."""

FOLDED = """
[...document.querySelectorAll('details pre')]
    .map(e => e.checkVisibility({contentVisibilityAuto: true}) && e.getBoundingClientRect().height > 0)
"""

WIDE = """
[...document.querySelectorAll('table')].filter(e => e.getBoundingClientRect().right > innerWidth)
    .map(e => e.caption.textContent)
"""

GROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find_browser()
    assert program is not None
    with start_browser(program, tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    path = folder / "report.html"
    path.write_text(render_report(make_run(folder)), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize(
    ("media", "scheme", "ground"),
    [
        ("screen", "light", "rgb(244, 245, 247)"),
        ("screen", "dark", "rgb(14, 16, 19)"),
        ("print", "light", "rgb(255, 255, 255)"),
        ("print", "dark", "rgb(255, 255, 255)"),
    ],
)
def test_it_can_be_read(browser: Browser, page, width, media, scheme, ground):
    browser.show(page, width, media=media, scheme=scheme)
    assert browser.evaluate("document.compatMode") == "CSS1Compat"
    assert browser.evaluate(GROUND) == ground
    if media == "screen":
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        assert browser.evaluate(OVERFLOWING) == []
    assert browser.evaluate(COVERED) == []
    assert browser.evaluate(EMPTY) == []
    shapes = browser.evaluate(f"{DRAWN}.map(svg => [svg.getBoundingClientRect().width, svg.viewBox.baseVal.width])")
    assert len(shapes) == 2
    assert all(shown >= (0.8 if media == "screen" else 0.4) * drawn for shown, drawn in shapes), "its text is small"
    assert browser.evaluate(DIM) == []
    assert browser.complaints == []


def test_on_paper_everything_is_there(browser: Browser, page):
    """What is folded on the screen too; and no table is wider than the 184 mm of A4 that can be printed on."""
    browser.show(page, 695, media="print")
    shown = browser.evaluate(FOLDED)
    assert len(shown) == 10
    assert all(shown)
    assert browser.evaluate(WIDE) == []
    document = browser.print()
    assert document.startswith(b"%PDF")
    assert 6 <= len(re.findall(rb"/Type\s*/Page\b", document)) <= 14


def test_long_names_stay_within_the_window(browser: Browser, page, tmp_path):
    """Of the run, of steps, of vertices, of files and in errors."""
    text = page.read_text(encoding="utf-8")
    for name in ("nightly", "https://example.org/001", "broken", "web/cut off", "w.csv", "no file of this name"):
        text = text.replace(f">{name}", f">{LONG}{name}").replace(f"{name}<", f"{name}{LONG}<")
    long = tmp_path / "long.html"
    long.write_text(text, encoding="utf-8")
    browser.show(long, 400)
    assert browser.evaluate("document.documentElement.scrollWidth") == 400
    assert browser.evaluate(OVERFLOWING) == []
    browser.complaints.clear()
