"""First lines of docstrings: imperatives for functions, noun phrases for classes and properties."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import mgspmv

QUESTIONS = re.compile(r"(What|Who|Whom|Whose|Whether|How|That|Those|These|Which|Where|When|Why|As of)\b")
NOUNS = re.compile(r"(The|A|An|One|Each|All|Some|Its|Every|Both|No)\b")
"""They begin noun phrases, which say nothing of what a function does."""
PACKAGE = Path(mgspmv.__file__).parent


def list_docstrings() -> Iterator[tuple[str, bool, str]]:
    """Yield where each docstring is, whether it is a function's, and its first line."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                continue
            if text := ast.get_docstring(node):
                decorators = [ast.unparse(decorator) for decorator in getattr(node, "decorator_list", [])]
                is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                is_call = is_function and not any("property" in each for each in decorators)
                yield f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 1)}", is_call, text.splitlines()[0]


def test_docstrings_begin_with_imperatives_or_nouns():
    found = list(list_docstrings())
    assert len(found) > 1000
    assert not [f"{where}: {line}" for where, _, line in found if QUESTIONS.match(line)]
    assert not [f"{where}: {line}" for where, is_call, line in found if is_call and NOUNS.match(line)]
