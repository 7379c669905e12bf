"""Vectors that users give as files: personalisation, dangling distribution, starting ranks, x and y of a product."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.npy import check_header

DANGLING_RULES = ("uniform", "drop", "error")

Weights = np.ndarray | dict[int, float] | dict[str, float]


def read_weights(path: str | os.PathLike[str], *, string_ids: bool = False) -> Weights:
    """Read a weight for each vertex (`.npy`) or for some by their ids (lines `id weight`).

    In lines, the two are separated by a comma, a tab or blanks; empty lines and those that begin with `#` or `%` are
    skipped; the first line may be a header such as `id,weight`.

    Parameters
    ----------
    string_ids : ids are strings, as they are in a store with such `vertex_ids`; else they are integers

    Returns
    -------
    float array of shape (n,), or a mapping of ids to weights

    Raises
    ------
    SourceError : no such file, a malformed line, a weight that is not finite, an id given twice
    """
    if Path(path).suffix == ".npy":
        return read_vector(path)
    weights = {}
    for order, (line_number, line) in enumerate(_read_lines(path)):
        try:
            name, weight = _parse_line(line, string_ids)
        except ValueError as error:
            if order == 0 and _is_header(line):
                continue
            raise SourceError(str(error), source=str(path), line_number=line_number, text=line) from error
        if name in weights:
            raise SourceError("this id was given before", source=str(path), line_number=line_number, text=line)
        weights[name] = weight
    return weights  # type: ignore[return-value]  # the keys are all of one type


def read_dangling(rule_or_path: str, *, string_ids: bool = False) -> Weights | str:
    """Give back one of `DANGLING_RULES`, or read a file as `read_weights` does.

    Raises
    ------
    OptionError : neither a rule nor a file
    SourceError : as `read_weights`
    """
    if check_dangling(rule_or_path) in DANGLING_RULES:
        return rule_or_path
    return read_weights(rule_or_path, string_ids=string_ids)


def check_dangling(rule_or_path: str) -> str:
    """Give back what is one of `DANGLING_RULES` or a file; raise OptionError for anything else."""
    if rule_or_path in DANGLING_RULES or Path(rule_or_path).exists():
        return rule_or_path
    raise OptionError(f"dangling must be {', '.join(DANGLING_RULES)} or a file; there is no file {rule_or_path!r}")


def read_vectors(
    personalization: str | None,
    dangling: str | None,
    out_weight: str | None = None,
    *,
    string_ids: bool = False,
) -> dict[str, Any]:
    """Read those of PageRank's vectors that are given, but for the start, by the names of its arguments.

    Raises
    ------
    OptionError, SourceError : as `read_dangling` and `read_weights`
    """
    files = {"personalization": personalization, "out_weight": out_weight}
    vectors: dict[str, Any] = {
        name: read_weights(path, string_ids=string_ids) for name, path in files.items() if path is not None
    }
    return vectors if dangling is None else vectors | {"dangling": read_dangling(dangling, string_ids=string_ids)}


def read_vector(path: str | os.PathLike[str], *, max_ndim: int = 1) -> np.ndarray:
    """Read an array of real numbers from a `.npy` file, one-dimensional unless `max_ndim` is 2.

    Raises
    ------
    SourceError : no such file, not a `.npy` file, or one that is shorter than its header claims, another number of
        dimensions, not real numbers
    """
    try:
        with open(path, "rb") as file:
            check_header(file, os.fstat(file.fileno()).st_size)
            file.seek(0)
            vector: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError as error:
        raise SourceError("there is no such file", source=str(path)) from error
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}", source=str(path)) from error
    except (ValueError, EOFError) as error:
        raise SourceError(f"not a .npy file of numbers ({error})", source=str(path)) from error
    if not 1 <= vector.ndim <= max_ndim or vector.dtype.kind not in "biuf":
        wanted = "one-dimensional" if max_ndim == 1 else "one- or two-dimensional"
        found = f"{vector.dtype} of shape {vector.shape}"
        raise SourceError(f"wanted a {wanted} array of real numbers, found {found}", source=str(path))
    return vector


def _read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """The lines that hold something, numbered from 1."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            for line_number, line in enumerate(file, 1):
                if (text := line.strip()) and text[0] not in "#%":
                    yield line_number, text
    except FileNotFoundError as error:
        raise SourceError("there is no such file", source=str(path)) from error
    except UnicodeDecodeError as error:
        raise SourceError(f"not a text file in UTF-8 ({error})", source=str(path)) from error


def _parse_line(line: str, string_ids: bool) -> tuple[int | str, float]:
    words = _split(line)
    if len(words) != 2:
        raise ValueError(f"wanted an id and a weight, found {len(words)} fields")
    name = words[0] if string_ids else _parse_id(words[0])
    return name, _parse_weight(words[1])


def _split(line: str) -> list[str]:
    separator = "," if "," in line else "\t" if "\t" in line else None
    return [word.strip() for word in line.split(separator)]


def _parse_id(word: str) -> int:
    try:
        number = int(word)
    except ValueError:
        raise ValueError(f"wanted an integer id, found {word!r}") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"wanted a 64-bit integer id, found {word!r}")
    return number


def _parse_weight(word: str) -> float:
    try:
        weight = float(word)
    except ValueError:
        raise ValueError(f"wanted a number as weight, found {word!r}") from None
    if not math.isfinite(weight):
        raise ValueError(f"wanted a finite weight, found {word!r}")
    return weight


def _is_header(line: str) -> bool:
    return len(words := _split(line)) == 2 and all(word.isidentifier() for word in words)
