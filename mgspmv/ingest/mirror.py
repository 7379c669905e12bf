"""Entries of which a source gives one half only."""

from __future__ import annotations

import numpy as np

from mgspmv.model import CooBatch


def mirror(batch: CooBatch, symmetry: str) -> CooBatch:
    """Each entry and, off the diagonal, its mirror image after it, so that their order does not depend on batches.

    Parameters
    ----------
    symmetry : `general`, where nothing is to be done, `symmetric` or `skew-symmetric`
    """
    if symmetry == "general":
        return batch
    pairs = np.stack([batch.rows, batch.cols], axis=1)
    keep = np.stack([np.ones(len(pairs), bool), batch.rows != batch.cols], axis=1)
    values = batch.values
    if values is not None:
        images = values if symmetry == "symmetric" else -values
        values = np.stack([values, images], axis=1)[keep]
    return CooBatch(pairs[keep], pairs[:, ::-1][keep], values)
