"""JSON of others: what is wrong is one ValueError in one line, which names the field."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from mgspmv.model import Status
from mgspmv.validation import DEPTH, check_fields, check_seal, parse_json, seal


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
        ({"parts": [{"n": 10**30}]}, "a number has 100 bits, and at most 64 are written"),
        ({"parts": [{"n": 1, "said": {"x": nest(DEPTH)}}]}, f"nested more than {DEPTH} levels deep"),
        ({"parts": [{"n": 1, "said": {"\ud800": 1}}]}, "surrogates not allowed"),
    ],
)
def test_a_wrong_field_is_named(change, said):
    with pytest.raises(ValueError, match=said) as raised:
        check_fields(Whole, RIGHT | change)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [None, 1, "x", [1], {}])
def test_what_is_no_object(value):
    with pytest.raises(ValueError, match=r"input should be|required"):
        check_fields(Whole, value)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 10**5, b"1" * 5000])
def test_what_is_no_json(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_seals_show_changes():
    sealed = json.loads(json.dumps(seal(RIGHT | {"change": 0.1})))
    check_seal(sealed)
    check_seal(RIGHT)  # written before there were seals
    for change in ({"change": 0.2}, {"more": 1}, {"sha256": None}):
        with pytest.raises(ValueError, match="was changed after it was written"):
            check_seal(sealed | change)
