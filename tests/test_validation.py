"""JSON of others: what is wrong is one ValueError in one line, which names the field."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from mgspmv.model import Status
from mgspmv.validation import DEPTH, check_fields


@dataclass(frozen=True)
class Part:
    n: int
    said: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    status: Status
    change: float


RIGHT = {"parts": [{"n": 1}, {"n": 2, "said": {"x": [None]}}], "status": "converged", "change": "NaN"}


def nest(depth: int) -> list[Any]:
    return [nest(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": "rconverged"}, r"status: input should be 'converged', .*, not 'rconverged'"),
        ({"change": None}, "change: input should be a valid number, not None"),
        ({"change": "x" * 200}, r"change: .*, not 'x{59}\.\.\."),
        ({"parts": {"n": 1}}, "parts: input should be a valid tuple, not .'n': 1."),
        ({"parts": [{"n": 1}, {"m": 2}]}, r"parts\.1\.n: field required"),
        ({"parts": [{"n": 1.5}]}, r"parts\.0\.n: .* fractional part, not 1\.5"),
        ({"parts": [{"n": 10**30}]}, "a number has 100 bits, but at most 64 are allowed"),
        ({"parts": [{"n": 1, "said": {"x": nest(DEPTH)}}]}, f"nested more than {DEPTH} levels deep"),
        ({"parts": [{"n": 1, "said": {"\ud800": 1}}]}, "surrogates not allowed"),
    ],
)
def test_a_wrong_field_is_named(change, said):
    with pytest.raises(ValueError, match=said) as raised:
        check_fields(Whole, RIGHT | change)
    assert "\n" not in str(raised.value)
