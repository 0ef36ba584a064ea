"""Keep the best subspace of an attempt that lost a site, for the attempt that follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpca.arrays import Array
from fedpca.linalg.dense import orth


@dataclass(frozen=True)
class WarmStart:
    """A subspace, ``(d, k)``, and the names of the features that its rows stand for, if they have any.

    The order of the features is that of the first site, and genotypes are the variants that all sites
    have. So without a site, the features may have another order, and there may be more of them.
    """

    subspace: Array
    features: tuple[str, ...] | None = None

    def among(self, features: Sequence[str] | None) -> Array:
        """Return the subspace with a row for each of these features; rows of new features are zero."""
        if features is None or self.features is None or tuple(features) == self.features:
            return self.subspace
        row_of = {name: row for row, name in enumerate(self.features)}
        rows = np.array([row_of.get(name, -1) for name in features])
        matched = np.where((rows >= 0)[:, None], self.subspace[rows], 0.0)
        is_same_set = len(rows) == len(self.features) and (rows >= 0).all()
        # without some of its rows, a basis is no longer orthonormal
        return matched if is_same_set else orth(matched)
