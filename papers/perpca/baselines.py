"""Find components of several sites in three other ways, to compare personalized PCA with.

    individual    r1 + r2 components of each site's own rows, and nothing shared
    pooled        r1 + r2 components of all rows in one place, the same for every site
    distributed   the r1 directions that the sites' r1 + r2 leading ones have most in common, and the
                  r2 leading ones of what these leave of a site's rows

Each takes the rows of the sites by name, ``(n_i, d)``, and r1 and r2. Rows are not centered: they are
used as they are given. A site whose rows have fewer directions than asked for gets fewer components.
`reconstruction_errors` judges any components by rows, which may be new ones:

    found = distributed(sites, 2, 10)
    found.shared, found.components["north"], reconstruction_errors(new_rows, found.components)

Source: section 7.1 of Shi and Kontar, "Personalized PCA: decoupling shared and unique features" (2024),
which calls them indivPCA, CPCA and distPCA.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedpca.linalg.dense import top_eigen

Array = np.ndarray
NEGLIGIBLE = 1e-13  # of all squares: a direction with less is made of rounding errors


@dataclass(frozen=True)
class Found:
    """Components of each site as orthonormal rows, the shared ones first, if there are any."""

    components: dict[str, Array]  # (r, d) by site; r = r1 + r2, or fewer where rows have fewer
    shared: Array | None = None  # (r1, d)


def leading(rows: Array, k: int) -> Array:
    """Return at most k leading right singular vectors of the rows, ``(k, d)``, above rounding."""
    n, d = rows.shape
    if n >= d:
        squares, V = top_eigen(rows.T @ rows, min(k, d))
        directions = V.T
    else:
        _, s, directions = np.linalg.svd(rows, full_matrices=False)
        squares, directions = s[:k] ** 2, directions[:k]
    return np.ascontiguousarray(directions[squares > NEGLIGIBLE * np.sum(rows**2)])


def individual(sites: Mapping[str, Array], r1: int, r2: int) -> Found:
    """Fit indivPCA: every site by itself."""
    return Found({name: leading(rows, r1 + r2) for name, rows in sites.items()})


def pooled(sites: Mapping[str, Array], r1: int, r2: int) -> Found:
    """Fit CPCA: all rows in one place."""
    common = leading(np.vstack(list(sites.values())), r1 + r2)
    return Found(dict.fromkeys(sites, common))


def distributed(sites: Mapping[str, Array], r1: int, r2: int) -> Found:
    """Fit distPCA with deflation: shared directions from one round, and then each site's own."""
    shared = leading(np.vstack(list(individual(sites, r1, r2).components.values())), r1)
    components = {}
    for name, rows in sites.items():
        own = leading(rows - (rows @ shared.T) @ shared, r2)
        components[name] = np.vstack([shared, own])
    return Found(components, shared)


def reconstruction_errors(
    sites: Mapping[str, Array], components: Mapping[str, Array]
) -> dict[str, float]:
    """Return the mean squared length of what components leave of a row, for each site."""
    return {
        name: float(np.sum(rows**2) - np.sum((rows @ components[name].T) ** 2)) / len(rows)
        for name, rows in sites.items()
    }


BASELINES = {"indivPCA": individual, "CPCA": pooled, "distPCA": distributed}
