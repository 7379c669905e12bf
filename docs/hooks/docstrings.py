"""Docstrings of this project as Griffe reads them.

Signatures show types with links, so those of parameters are left out. Errors are described after the colon, where
NumPy's style has a separate line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

from mgspmv import errors

HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
PARAMETERS = re.compile(r"^(\S.*?)(?: : .*)?\n((?: .*(?:\n|$))+)", re.MULTILINE)
ITEM = re.compile(r"^(\S.*?) :\s(.*(?:\n .*)*)", re.MULTILINE)
ERRORS = {name for name in vars(errors) if name.endswith("Error")}


class PlainWords(griffe.Extension):
    """Puts what follows the colon into the description."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Of whatever has a docstring."""
        if obj.docstring is not None:
            returned = str(obj.returns) if isinstance(obj, griffe.Function) and obj.returns is not None else ""
            obj.docstring.value = rewrite(obj.docstring.value, returned)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Show the keywords of `power_iteration` as parameters, which its docstring describes one by one."""
        function, keywords = pkg["api.powers.power_iteration"], pkg["api.arguments.Running"].attributes
        kind = griffe.ParameterKind.keyword_only
        taken = [parameter for parameter in function.parameters if parameter.name != "running"]
        added = [
            griffe.Parameter(name, annotation=own.annotation, kind=kind, default="...")
            for name, own in keywords.items()
        ]
        function.parameters = griffe.Parameters(*taken, *added)

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        """Let each module know all errors, so that those that are only named in it are linked."""
        for name in ERRORS - set(mod.members):
            mod.set_member(name, griffe.Alias(name, f"mgspmv.errors.{name}"))


def rewrite(text: str, returned: str) -> str:
    """A docstring in NumPy's style; `returned` is the annotation of what is returned."""
    first, *rest = HEADING.split(text)
    sections = zip(rest[::2], rest[1::2], strict=True)
    return first + "".join(
        f"{name}\n{'-' * len(name)}\n{_rewrite_section(name, body, returned)}" for name, body in sections
    )


def _rewrite_section(name: str, body: str, returned: str) -> str:
    if name == "Returns":
        return f"{returned}\n" + re.sub(r"^(?=.)", "    ", body, flags=re.MULTILINE)
    if name == "Parameters":
        return PARAMETERS.sub(lambda item: "\n".join(_list_items(item[1], item[2].rstrip("\n"))) + "\n", body)
    if name == "Examples":
        return body
    return ITEM.sub(lambda item: "\n".join(_list_items(item[1], f"    {item[2]}")), body)


def _list_items(names: str, description: str) -> Iterator[str]:
    """Each of the names that share a description with it."""
    return (f"{name}\n{description}" for name in names.split(", "))
