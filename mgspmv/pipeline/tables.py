"""Tables of the highest ranks as files."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mgspmv.validation import to_json


def save_top(highest: Mapping[Any, Sequence[tuple[Any, float]]], folder: Path) -> None:
    """Write the highest ranks as `top.csv` and `top.json`.

    Parameters
    ----------
    highest : pairs of id and rank of each vector, by its label; of a run, under None
    """
    rows = [
        ({} if vector is None else {"vector": vector}) | {"place": place, "id": name, "rank": to_json(rank)}
        for vector, pairs in highest.items()
        for place, (name, rank) in enumerate(pairs, 1)
    ]
    names = [*([] if None in highest else ["vector"]), "place", "id", "rank"]
    with open(folder / "top.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    text = json.dumps(rows, indent=1, ensure_ascii=False)
    (folder / "top.json").write_text(f"{text}\n", encoding="utf-8")
