"""Pages of the documentation: fenced blocks, indented ones, spans of code, links and anchors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]

_INFO = re.compile(r'(?P<language>[\w+-]*)(?P<options>(\s+[\w-]+="[^"]*")*)\s*')
_OPTION = re.compile(r'([\w-]+)="([^"]*)"')
_PARSER = MarkdownIt("commonmark").enable("table")


class PageError(AssertionError):
    """Something on a page is wrong; the message begins with `page:line`."""

    def __init__(self, page: str, line: int, message: str) -> None:
        super().__init__(f"{page}:{line}: {message}")


@dataclass(frozen=True)
class Text:
    """A piece of a page."""

    page: str
    """Path in the repository, or any other name."""
    line: int
    """Where it begins, from 1; of a fenced block the line after the fence."""
    text: str

    def fail(self, message: str, line: int | None = None) -> PageError:
        return PageError(self.page, self.line if line is None else line, message)


@dataclass(frozen=True)
class Block(Text):
    """What is between two fences."""

    language: str
    title: str | None
    """Name of the file that it is, if it is one."""


@dataclass(frozen=True)
class Page:
    """A page in Markdown."""

    name: str
    text: str

    @property
    def blocks(self) -> list[Block]:
        """All that is fenced, in order.

        Raises
        ------
        PageError : an info string that is not a language and `key="value"`, or a fence within an indented block, which
            is none
        """
        return [self._read_block(token) for token in self._tokens if token.type == "fence"]

    @property
    def indented(self) -> list[Text]:
        """Blocks by indentation."""
        found = [
            Text(self.name, _find_line(token), token.content) for token in self._tokens if token.type == "code_block"
        ]
        for block in found:
            if "```" in block.text:
                raise block.fail("a fence in an indented block is no fence; move it to the left")
        return found

    @property
    def spans(self) -> list[Text]:
        """Spans of code in running text, headings and tables."""
        return [Text(self.name, line, token.content) for line, token in self._inline if token.type == "code_inline"]

    @property
    def links(self) -> list[Text]:
        """What links and pictures lead to."""
        found = [(line, token.attrGet("href") or token.attrGet("src")) for line, token in self._inline]
        return [Text(self.name, line, str(target)) for line, target in found if target]

    @property
    def anchors(self) -> set[str]:
        """What a link may name after `#`: headings, as GitHub makes anchors of them."""
        headings = [after for token, after in zip(self._tokens, self._tokens[1:], strict=False) if _opens(token)]
        slugs, seen = set(), Counter[str]()
        for heading in headings:
            text = "".join(child.content for child in heading.children or ())
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            slugs.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
        return slugs

    @cached_property
    def _tokens(self) -> list[Token]:
        return _PARSER.parse(self.text)

    @property
    def _inline(self) -> Iterator[tuple[int, Token]]:
        """All within lines, each with the first line of its paragraph or cell, counted on by line breaks."""
        for token in self._tokens:
            line = _find_line(token) if token.map else 0
            for child in token.children or ():
                yield line, child
                line += child.type in ("softbreak", "hardbreak")

    def _read_block(self, token: Token) -> Block:
        line = _find_line(token) + 1
        if (info := _INFO.fullmatch(token.info.strip())) is None:
            raise PageError(self.name, line - 1, f'```{token.info} is not a language and key="value"')
        title = dict(_OPTION.findall(info["options"])).get("title")
        return Block(self.name, line, token.content, info["language"], title)


def _find_line(token: Token) -> int:
    assert token.map is not None
    return token.map[0] + 1


def _opens(token: Token) -> bool:
    return token.type == "heading_open"


@cache
def read_page(name: str) -> Page:
    """A page by its path in the repository."""
    return Page(name, (ROOT / name).read_text(encoding="utf-8"))


def list_pages() -> list[str]:
    """Paths of all pages whose blocks are run."""
    return ["README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]


def find_section(page: Page, heading: str) -> str:
    """Return the text below a heading of the second level."""
    return page.text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
