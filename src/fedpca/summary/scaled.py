"""Scale summarized rows to unit variance, after the fact.

    S / (s s') = R'R / (s s') + (T + E) / (s s'),   s_j^2 = S_jj / n

A summary holds S_jj exactly, so the scale is exact as well. The scaled summary is exact if the summary
left nothing out, or if the full scatter is at hand. Otherwise, the part left out, ``T + E``, is scaled
too. Its norm is at most its trace, which the diagonal of S reveals, and at most its old norm divided
by the smallest ``s_j^2``. Directions that a summary left out because their features have small values
may then matter, and the bound includes them. It also includes rounding errors, which are small only
compared with the largest feature. In the full scatter, rounding errors are in proportion to each
feature.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.rows.standardized import deviations
from fedpca.summary import bounds
from fedpca.summary.lowrank import EPS, LowRank
from fedpca.summary.scatter import Scatter
from fedpca.summary.summary import Summary


class Scaled(NamedTuple):
    """A summary of rows in units of standard deviations; its mean is still in the old units."""

    summary: Summary
    scale: Array  # (d,), 1 for constant features
    rounding: float = 0.0  # bound on the norm of the rounding errors that the scale has magnified

    def angle_bound(self, k: int) -> float:
        """Return a bound on the sine of the largest angle to the scaled rows' k leading directions."""
        known, energy, n = self.summary.known, self.summary.energy, self.summary.n
        return bounds.angle_bound(known, energy, k, n, self.rounding)


def scaled_summary(summary: Summary) -> Scaled:
    """Return the summary of the rows, each feature divided by its standard deviation."""
    scale = scale_of(summary, summary.squares)
    rows, squares = summary.known.rows() / scale, summary.squares / scale**2
    _, values, directions = np.linalg.svd(rows, full_matrices=False)
    is_kept = values > 10 * EPS * values.max(initial=0.0)
    missing, smallest = 0.0, float(np.min(scale)) ** 2
    if summary.known.dropped > 0:
        left_out = np.maximum(squares - np.sum(rows**2, axis=0), 0.0).sum()
        slack = summary.n_features * EPS * squares.sum()
        # two bounds on the norm of what is left out: from its norm before scaling, and from its trace
        # after it
        missing = float(min(summary.known.dropped / smallest, left_out + slack))
    known = LowRank(directions[is_kept], values[is_kept], missing=missing)
    rounding = bounds.eigenvalue_rounding(summary.known, summary.n) / smallest
    return Scaled(replace(summary, squares=squares, known=known), scale, rounding)


def scaled_scatter(summary: Summary, scatter: Scatter) -> Scaled:
    """Return the scaled summary of the rows in a scatter, with the settings of ``summary``."""
    scale = scale_of(replace(summary, at=scatter.mean), scatter.squares())
    divided = Scatter(len(scale))
    divided.mean, divided.lower = (
        scatter.mean,
        np.asfortranarray(scatter.lower / np.outer(scale, scale)),
    )
    return Scaled(summary.of_scatter(divided), scale)


def scale_of(summary: Summary, squares: Array) -> Array:
    """Return the standard deviation of each feature, ``(d,)``, given its squares about the mean."""
    if not summary.centered:
        raise InputError(
            "scale=True requires center=True: a summary about zero does not hold the deviations from "
            "the mean"
        )
    n = max(summary.n, 1.0)
    return deviations(squares / n, summary.mean, n)
