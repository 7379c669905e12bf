"""The JSON schema of definitions, by which editors complete and check them.

python -m mgspmv.pipeline.schema > pipelines/mgspmv.schema.json
"""

from __future__ import annotations

import json
from typing import Any

from mgspmv.pipeline.definition import Pipeline


def make_schema() -> dict[str, Any]:
    """The schema, as JSON values."""
    schema: dict[str, Any] = _simplify(Pipeline.model_json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Pipeline of mgspmv"}


def _simplify(schema: Any) -> Any:
    """Without null, which TOML does not have, titles that only say the key again, and defaults of whole tables."""
    if isinstance(schema, list):
        return [_simplify(own) for own in schema if own != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    own = {key: _simplify(value) for key, value in schema.items() if not _is_idle(key, value)}
    if len(own.get("anyOf", ())) == 1:
        own |= own.pop("anyOf")[0]
    return own


def _is_idle(key: str, value: Any) -> bool:
    is_of_no_use = value is None or isinstance(value, dict)
    return (key == "title" and isinstance(value, str)) or (key == "default" and is_of_no_use)


def main() -> None:
    """Print the schema."""
    print(json.dumps(make_schema(), indent=1))


if __name__ == "__main__":
    main()
