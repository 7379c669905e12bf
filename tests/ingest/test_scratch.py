"""Files that stay are what was said of them, or are refused."""

from __future__ import annotations

import numpy as np
import pytest

from mgspmv.errors import StoreError
from mgspmv.ingest.scratch import KeptFile, KeptFolder

NUMBERS = np.arange(1000, dtype=np.int64)


@pytest.fixture
def left(tmp_path):
    """What a folder says of itself, in which something was appended since."""
    folder = KeptFolder(tmp_path, {})
    folder.open("a").append(NUMBERS)
    folder.open("b").append(NUMBERS[:0])
    said = folder.describe()
    folder.open("a").append(NUMBERS)
    folder.close()
    return said


def test_what_was_said_is_there_and_nothing_else(tmp_path, left):
    assert left["a"][0] == 8000
    folder = KeptFolder(tmp_path, left)
    assert (tmp_path / "a").stat().st_size == 8000
    place = folder.open("a").put(NUMBERS[:5])
    assert folder.open("a").get(place).tolist() == [0, 1, 2, 3, 4]
    again = folder.describe()
    folder.close()
    folder = KeptFolder(tmp_path, again)
    assert folder.open("a").get([0, 1000, "<i8"]).tolist() == NUMBERS.tolist()
    assert folder.open("b").n_bytes == 0
    folder.close()


def test_parts_of_a_file(tmp_path):
    file = KeptFile(tmp_path / "a")
    for k in range(3):
        part = file.begin_part()
        part.append(NUMBERS[k : k + 2])
        part.append(NUMBERS[:k])
        part.close()
        assert part.offset == 8 * sum(2 + own for own in range(k))
        assert part.read(8, 1, NUMBERS.dtype).tolist() == [k + 1]
    file.close()


def test_what_replaces_another(tmp_path):
    folder = KeptFolder(tmp_path, {})
    names = [folder.replace("marks", NUMBERS[:n]) for n in range(3)]
    assert names == ["marks-1", "marks-2", "marks-3"]
    assert list(folder.describe()) == ["marks-3"]
    assert [file.path.name for file in folder.files()] == ["marks-3"]
    folder.close()


@pytest.mark.parametrize("change", ["missing", "shorter", "not what was written"])
def test_damage(tmp_path, left, change):
    data = bytearray((tmp_path / "a").read_bytes())
    data[7000] ^= 4
    if change == "missing":
        (tmp_path / "a").unlink()
    else:
        (tmp_path / "a").write_bytes(data[:7999] if change == "shorter" else data)
    before = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=f"a is {change}"):
        KeptFolder(tmp_path, left)
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == before


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(StoreError, match="cannot write what is sorted to"):
        KeptFile(tmp_path / "none/a")
