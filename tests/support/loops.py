"""Many small cases in one test, whose failure lists all cases that failed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]


def loop_over(names: str | Sequence[str], values: Iterable[Any], ids: Iterable[Any] | None = None) -> Callable:
    """Run a test for each value, as `pytest.mark.parametrize` does with the same arguments, but as one test.

    For tables of cases that take a few milliseconds each. Every case runs, also after one that failed. Each has a
    `tmp_path` of its own, and what it changes by `monkeypatch` is undone after it; other fixtures are shared.

    Examples
    --------
    >>> @loop_over(("n", "square"), [(1, 1), (2, 5), (3, 8)])
    ... def check(n, square):
    ...     assert n * n == square
    >>> try:
    ...     check()
    ... except AssertionError as error:
    ...     print(error.__notes__)
    ['2 of 3 cases failed, the first: n=2, square=5; also: n=3, square=8']
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    given = list(values)
    rows = [(value,) if len(names) == 1 else tuple(value) for value in given]
    assert rows, f"no cases of {names}"
    assert all(len(row) == len(names) for row in rows), f"rows of {names} of another length"
    cases = [dict(zip(names, row, strict=True)) for row in rows]
    labels = [_describe(case) for case in cases] if ids is None else [str(label) for label in ids]

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        missing = set(names) - set(signature.parameters)
        assert not missing, f"{test.__name__} takes no {missing}"

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failed: list[str] = []
            first: BaseException | None = None
            for place, (label, case) in enumerate(zip(labels, cases, strict=True)):
                try:
                    _run_case(test, fixtures, case, place)
                except (Exception, pytest.fail.Exception) as error:
                    failed.append(label)
                    first = first or error
            if first is not None:
                others = f"; also: {'; '.join(failed[1:])}" if failed[1:] else ""
                first.add_note(f"{len(failed)} of {len(cases)} cases failed, the first: {failed[0]}{others}")
                raise first

        kept = [parameter for name, parameter in signature.parameters.items() if name not in names]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # what pytest goes by
        return run

    return decorate


def _run_case(test: Test, fixtures: dict[str, Any], case: dict[str, Any], place: int) -> None:
    if "tmp_path" in fixtures:
        fixtures = fixtures | {"tmp_path": fixtures["tmp_path"] / f"case{place}"}
        fixtures["tmp_path"].mkdir()
    if "monkeypatch" not in fixtures:
        test(**fixtures, **case)
        return
    with pytest.MonkeyPatch.context() as patch:
        test(**fixtures | {"monkeypatch": patch}, **case)


def _describe(case: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_shorten(value)}" for name, value in case.items())


def _shorten(value: Any) -> str:
    text = getattr(value, "__name__", None) or repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
