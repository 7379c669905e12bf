"""Reading of a TOML file into a checked definition: variables, overrides, and all problems in one message."""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from mgspmv.api.ranking import read_checkpoint
from mgspmv.errors import OptionError, PipelineError, StoreError, hide_value, is_operators, translate_os_error
from mgspmv.files import check_file
from mgspmv.pipeline.definition import LOADABLE, PREVIOUS, Pipeline, suggest
from mgspmv.pipeline.steps import PipelineStep, list_matrices, list_points, list_steps
from mgspmv.solvers.options import PageRankOptions

Key = tuple[str, ...]
"""Names of tables, and of the key in them."""
Problems = Iterator[tuple[Key, str]]
"""Pairs of a key and the problem with its value."""

_VARIABLE = re.compile(r"\$(\$|\{(?P<name>[A-Za-z_]\w*)(?::-(?P<default>([^}$]|\$(?!\{))*))?\})")

_PARTS = re.compile(r"(?:(?<=[/?&=#@,;])|(?=[/?&=#@,;]))(?![^${]*\})")
"""Boundary between the parts of a path or a URL, except within a variable."""


@dataclass(frozen=True)
class Definition:
    """Valid definition, as read from a file.

    Examples
    --------
    >>> from pathlib import Path
    >>> from mgspmv.pipeline import read_pipeline
    >>> _ = Path("a.toml").write_text('matrix.web = {generate = "rmat", parameters = {scale = 6}}')
    >>> definition = read_pipeline("a.toml")
    >>> definition.name, list(definition.list_steps())
    ('a', ['web'])
    """

    file: str
    """Path of the definition."""
    pipeline: Pipeline
    """Validated definition, with paths relative to the working directory."""
    written: Pipeline
    """Validated definition, with paths as in the file."""
    tables: dict[str, Any]
    """Content of the file, with overrides applied and variables not expanded."""

    @property
    def name(self) -> str:
        """Name of the pipeline."""
        return self.pipeline.name or Path(self.file).stem

    @property
    def base(self) -> str:
        """Folder of the file, to which its paths are relative; empty for the working directory."""
        return os.path.dirname(self.file)

    @property
    def folder(self) -> Path:
        """Folder of its records, and the default place of all outputs."""
        return Path(self.pipeline.folder or os.path.join(self.base, self.name))

    def list_steps(self) -> dict[str, list[PipelineStep]]:
        """List the steps by matrix; the first step of each makes it."""
        return list_steps(self.pipeline, self.written, str(self.folder))


def read_pipeline(path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> Definition:
    """Read and check a definition; nothing is run, and sources are not accessed.

    Parameters
    ----------
    path : path
        The TOML file.
    overrides : mapping, optional
        Values that replace the values of the file, by dotted key, such as `run.alpha`; paths are relative to the file,
        too.

    Raises
    ------
    PipelineError : the file is missing or not TOML; or keys, values or variables are wrong, all in one message

    Examples
    --------
    >>> from pathlib import Path
    >>> from mgspmv.pipeline import read_pipeline
    >>> _ = Path("a.toml").write_text('matrix.web = {generate = "rmat", parameters = {scale = 6}}')
    >>> read_pipeline("a.toml", {"matrix.web.parameters.scale": 8}).pipeline.matrix["web"].parameters
    {'scale': 8}
    """
    name, overrides = os.fspath(path), overrides or {}
    written = _read_tables(path)
    problems = [*_override(written, overrides)]
    tables, unset = _replace_variables(written)
    problems += unset.items()
    try:
        located = Pipeline.model_validate(tables, context=os.path.dirname(name))
        definition = Definition(name, located, Pipeline.model_validate(tables), written)
    except ValidationError as error:
        problems += [own for own in _list_problems(error) if own[0] not in unset]
    else:
        problems += _find_problems(definition.pipeline)
    if problems:
        raise PipelineError("\n".join(_name_place(name, key, overrides) + said for key, said in problems))
    return definition


def _read_tables(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        check_file(path)
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except StoreError as error:
        raise PipelineError(str(error)) from error
    except OSError as error:
        if is_operators(error):
            raise translate_os_error(error, path, "read") from error
        found = f"cannot read this pipeline: {error.strerror}"
        if isinstance(error, FileNotFoundError):
            found = "there is no such file; check the path"
        raise PipelineError(f"{path}: {found}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PipelineError(f"{path}: not valid TOML: {error}") from error


def _name_place(name: str, key: Key, overrides: Mapping[str, Any]) -> str:
    is_overridden = any(key[: len(own)] == own for own in (tuple(path.split(".")) for path in overrides))
    return f"{name}{', as overridden' if is_overridden else ''}: {'.'.join(key)}: "


# --- variables and overrides -----------------------------------------------------------------------------------------


def _override(tables: dict[str, Any], overrides: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """Apply overrides to the tables, creating missing ones; yield problems."""
    for path, value in overrides.items():
        *names, key = names_of_all = tuple(path.split("."))
        if not all(names_of_all):
            yield (path,), "not a valid key; join tables and key by dots, such as run.alpha"
            continue
        table: Any = tables
        for depth, name in enumerate(names, 1):
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                yield names_of_all, f"cannot be set: {'.'.join(names[:depth])} is {table!r}, not a table"
                break
        else:
            table[key] = deepcopy(value)


def _replace_variables(tables: Any) -> tuple[Any, dict[Key, str]]:
    """Replace each ${NAME} by its value in the environment; also return unset or malformed variables, by key."""
    unset: dict[Key, str] = {}

    def replace(value: Any, key: Key) -> Any:
        if isinstance(value, dict):
            return {name: replace(own, (*key, name)) for name, own in value.items()}
        if isinstance(value, list):
            return [replace(own, key) for own in value]
        if not isinstance(value, str):
            return value
        if "${" in _VARIABLE.sub("", value):
            unset[key] = f"expected ${{NAME}} or ${{NAME:-DEFAULT}}, not nested, or $$ for a $; got {value!r}"

        def expand(text: str) -> str:
            return _VARIABLE.sub(lambda match: find(match, key), text)

        _hide_values(value, expand)
        return expand(value)

    def find(match: re.Match[str], key: Key) -> str:
        name, default = match["name"], match["default"]
        if name is None:
            return "$"
        found = os.environ.get(name)
        if not found and default is not None:
            return str(default)
        if found is None:
            unset[key] = f"the environment variable {name} is not set; set it, or write ${{{name}:-DEFAULT}}"
        return found or ""

    return replace(tables, ()), unset


def _hide_values(written: str, expand: Callable[[str], str]) -> None:
    """Make records, messages and logs show the definition's text in place of the values of variables."""
    for part in [written, *_PARTS.split(written)]:
        found = {match[0]: os.environ.get(match["name"] or "") for match in _VARIABLE.finditer(part)}
        if any(found.values()):
            hide_value(expand(part), part)
        for variable, value in found.items():
            hide_value(value or "", variable)


# --- validation errors -----------------------------------------------------------------------------------------------


def _list_problems(error: ValidationError) -> Iterator[tuple[Key, str]]:
    """Yield the problems found by pydantic: key, and a text with expected and actual value and a hint."""
    for problem in error.errors():
        # pydantic adds these for a value or list, and for a dict's key
        key = tuple(str(part) for part in problem["loc"] if part not in ("[value]", "[list]", "[key]"))
        yield key, _describe_problem(problem, key)


def _describe_problem(problem: Any, key: Key) -> str:
    # A key for all runs that is misspelled is taken for the name of a run.
    is_unknown = problem["type"] == "extra_forbidden" or (problem["type"] == "model_type" and key[:-1] == ("run",))
    if is_unknown:
        known = _list_keys(key[:-1])
        return f"unknown key{suggest(key[-1], known) or '; known keys: ' + ', '.join(known)}"
    if problem["type"] in ("model_type", "dict_type"):
        return f"expected a table, [{'.'.join(key)}], got {problem['input']!r}"
    if problem["type"] == "missing":
        return "required key is missing"
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    return f"{problem['msg'][0].lower()}{problem['msg'][1:]}, not {problem['input']!r}"


def _list_keys(key: Key) -> list[str]:
    """List the keys of a table."""
    model: type[BaseModel] = Pipeline
    for name in key:
        if name in model.model_fields:  # otherwise the name of a matrix, a run, ...
            model = _find_model(model.model_fields[name].annotation) or model
    return list(model.model_fields)


def _find_model(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a field, or of the values of a dict field."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for model in map(_find_model, get_args(annotation)) if model is not None), None)


# --- checks of several sections --------------------------------------------------------------------------------------


def _find_problems(pipeline: Pipeline) -> Problems:
    """Yield the problems of a definition, each with its key."""
    is_unnamed = pipeline.run is not None and not pipeline.run.__pydantic_extra__
    tables: dict[str, Any] = {"run": pipeline.runs, "batch": pipeline.batch, "product": pipeline.product}
    taken: dict[str, str] = {}
    for table, sections in tables.items():
        for name, section in sections.items():
            key = (table,) if table == "run" and is_unnamed else (table, name)
            if taken.setdefault(name, table) != table:
                yield key, f"a {taken[name]} has the same name, and both would write to the same folder; rename one"
            yield from _check_matrices(pipeline, key, section)
            points = list(list_points(section))
            for label, count in Counter(label for label, _ in points).items():
                if count > 1:
                    yield key, f"two combinations have the same label {label!r}; rename one of the files"
            if table != "product":
                yield from dict.fromkeys(own for _, point in points for own in _check_ranks(pipeline, key, point))


def _check_matrices(pipeline: Pipeline, key: Key, section: Any) -> Problems:
    """Check that the matrices of a section exist, store a transpose if it is needed, and can be ranked."""
    known = pipeline.matrix
    turn = "transpose" if key[0] == "product" else "reverse"
    turned = getattr(section, turn)
    for name in list_matrices(pipeline, section):
        if name not in known:
            there = suggest(name, [*known]) or f"; known matrices: {', '.join(known)}"
            yield (*key, "matrix"), f"there is no matrix {name!r}{there}"
        elif turned not in (False, [False]) and known[name].open is None and not known[name].transpose:
            yield (*key, turn), f"this needs the transpose; set transpose = true in [matrix.{name}]"
        elif key[0] != "product" and known[name].kind == "matrix":
            said = f"{name!r} is of kind 'matrix' and cannot be ranked; set kind = \"graph\" in its section"
            yield (*key, "matrix"), said


def _check_ranks(pipeline: Pipeline, key: Key, section: Any) -> Problems:
    """Check that options of PageRank are compatible with each other, and with [output]."""
    names = ("tol", "norm", "max_iter", "precision", *(("stop",) if key[0] == "run" else ()))
    try:
        options = PageRankOptions(**{name: getattr(section, name) for name in names})
        if key[0] == "run" and section.checkpoint:
            read_checkpoint("", options)
    except OptionError as error:
        yield key, str(error)
    output = pipeline.output
    if key[0] == "batch" and output.scaler != "none":
        yield key, f'batches do not support scaler = "{output.scaler}" in [output]; remove the scaler or the batch'
    if key[0] == "run" and section.nstart == PREVIOUS:
        if output.scaler != "none":
            said = 'nstart = "previous" needs unscaled ranks; set scaler = "none" in [output]'
            yield (*key, "nstart"), said
        if not set(output.formats) & set(LOADABLE):
            said = 'nstart = "previous" reads ranks in zarr or parquet; add one of them to formats in [output]'
            yield (*key, "nstart"), said
