"""Wraps long lines of printed messages; tables keep their lines and scroll."""

from __future__ import annotations

import re
from html import unescape

WIDTH = 100
"""Number of characters that fit in a block on a wide screen."""
PLAIN = re.compile(r"<pre>(?=(?:<span></span>)?<code>([^<]*)</code></pre>)")
"""A block without highlighted code, which is output or the text of a file."""


def wrap_long_lines(html: str) -> str:
    """Mark the blocks whose long lines are to be wrapped with a class."""
    return PLAIN.sub(lambda found: '<pre class="wrapped">' if _is_message(unescape(found[1])) else found[0], html)


def _is_message(text: str) -> bool:
    return "──" not in text and any(len(line) > WIDTH for line in text.splitlines())
