"""Where keys are in a file."""

from __future__ import annotations

import pytest

from mgspmv.pipeline.lines import find_line

TEXT = '''# a comment
name = "x"   # with a [run]

[run]
alpha = [
  0.5,  # the first
  0.9,
]
text = """
[product.y]
x = 1
"""
b.c = {d = 1, "e.f" = 2}
[matrix."a.b"]
path = "x"
[run.named]
[product.y]
x = 2
'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("name", 2),
        ("run", 4),
        ("run alpha", 5),
        ("run alpha 1", 5),
        ("run alpha 7", 5),
        ("run text", 9),
        ("run b", 13),
        ("run b c d", 13),
        ("run b c e.f", 13),
        ("matrix a.b path", 15),
        ("matrix a.b none", 14),
        ("run named", 16),
        ("run named alpha", 16),
        ("product y", 17),
        ("product y x", 18),
        ("limits", None),
        ("name x", 2),
    ],
)
def test_lines(key, line):
    assert find_line(TEXT, tuple(key.split(" "))) == line
