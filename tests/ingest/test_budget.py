"""Files for what does not fit into memory."""

from __future__ import annotations

import numpy as np
import pytest

from mgspmv.errors import StoreError
from mgspmv.ingest.budget import ScratchFile


def test_a_file_that_is_cut_short_is_an_error():
    file = ScratchFile(None)
    file.append(np.arange(10))
    with pytest.raises(StoreError, match="a scratch file was truncated"):
        file.read(40, 6, np.dtype(np.int64))
    file.close()
    assert file.file.closed
