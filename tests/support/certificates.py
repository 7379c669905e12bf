"""Certificates as the documentation makes them."""

from __future__ import annotations

import subprocess
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def make_certificates(folder: Path) -> Path:
    """The folder, in which the commands of the page have made certificates and Dask's configuration for them."""
    text = PAGE.read_text()
    begin = text.index("openssl req -x509")
    block = text[text.rindex("```sh\n", 0, begin) + 6 : text.index("```", begin)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    script = block.replace("FOLDER=$PWD/certificates", f"FOLDER={folder}")
    assert str(folder) in script
    subprocess.run(["sh", "-euc", script], check=True, capture_output=True)
    return folder
