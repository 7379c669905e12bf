"""Numbers as people read them."""

from __future__ import annotations

import math

from mgspmv.display import (
    format_bytes,
    format_number,
    format_phases,
    format_power,
    format_scaled,
    format_seconds,
    read_number,
    shorten,
)


def test_seconds():
    told = {
        0: "0 s", 2.5e-6: "2.5 µs", 0.00123: "1.23 ms", 0.9999: "1 s", 83.44: "83.4 s", 119.9: "120 s",
        125: "2 min 5 s", 7199: "119 min 59 s", 7260: "2 h 1 min",
    }  # fmt: skip
    assert {elapsed_s: format_seconds(elapsed_s) for elapsed_s in told} == told


def test_phases():
    seconds = {"start": 0.00004, "load": 0.0093, "product": 0.07, "exchange": 0.0, "residual": 1e-7, "compile": 1.2}
    assert format_phases(seconds) == "1.28 s: compile 1.20 s, product 0.07 s, load 0.01 s"
    assert (
        format_phases({**seconds, "compile": 0.0012}, 3) == "80.54 ms: product 70.00 ms, load 9.30 ms, compile 1.20 ms"
    )
    assert format_phases({"load": 2e-6}) == "2.00 µs: load 2.00 µs"
    assert format_phases({}) == "0.00 µs"


def test_bytes():
    told = {0: "0 B", 999: "999 B", 999.6: "1 kB", 4.56e9: "4.56 GB", 3e18: "3e+03 PB"}
    assert {count: format_bytes(count) for count in told} == told


def test_numbers():
    values = [0.0123456, 8.92e-7, 1e12, 0.0, math.nan, math.inf, -math.inf]
    assert [format_number(value) for value in values] == ["0.0123", "8.92e-7", "1e12", "0", "–", "∞", "−∞"]
    assert [format_scaled(value) for value in (7, 7_300, 2.73e8, 9.99e11, 4e15)] == [
        "7",
        "7.3 k",
        "273 M",
        "999 G",
        "4e+03 T",
    ]
    assert format_power(-12) == "10⁻¹²"


def test_names_of_what_is_not_finite_are_read():
    assert read_number("Infinity") == math.inf
    assert math.isnan(read_number("NaN"))
    assert math.isnan(read_number(None))
    assert read_number(3) == 3.0


def test_a_long_text_keeps_its_ends():
    for text, limit, short in (("abcdef", 6, "abcdef"), ("abcdefg", 6, "abc…fg"), ("abcdefgh", 3, "a…h")):
        assert shorten(text, limit) == short
        assert len(short) <= limit
