"""Make up rows on which a program can be rehearsed, since nothing is known about the sites' rows."""

from __future__ import annotations

import numpy as np

from fedpca.arrays import Array


def like_rows(rng: np.random.Generator, n: int, p: int) -> Array:
    """Return at most p rows whose second moments are distributed like those of n normal rows.

    The triangular factor of normal rows has independent entries (Bartlett).
    """
    if n <= p:
        return rng.standard_normal((n, p))
    R = np.triu(rng.standard_normal((p, p)), 1)
    R[np.diag_indices(p)] = np.sqrt(rng.chisquare(n - np.arange(p)))
    return R


def evenly_thinned(variances: Array, n_leading: int, side: int) -> Array:
    """Return all variances, or the leading ones and some others if there are more than ``side``."""
    if len(variances) <= side:
        return variances
    rest = variances[n_leading:]
    at = ((np.arange(side - n_leading) + 0.5) * len(rest) / (side - n_leading)).astype(int)
    return np.concatenate([variances[:n_leading], rest[at]])
