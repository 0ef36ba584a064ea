"""Attack sites with honest totals only: over changing sets of sites, or nearly those of one row.

Secure sums hide a site's own answers, but not the totals. If runs have different sets of sites, their
totals are linear equations for the sites' own sums. Kerkouche et al. infer properties of single
clients in this way from the aggregated updates of many rounds; sums over all rows of an unchanged table
need no statistics, only as many different sets as sites.

Source: Kerkouche, Acs, and Fritz, "Client-specific property inference against secure aggregation in
federated learning" (2023), whose attack is named PROLIN.
"""

from __future__ import annotations

import itertools

import numpy as np

from fedpca.arrays import Array
from fedpca.audit.liar import Found, Liar
from fedpca.audit.lying_sums import HonestMoments, honest_moments, products_about
from fedpca.rows.gaps import ERROR
from fedpca.solvers.common_features import names_to_bytes

TIMES = 1e6  # how many times as large as the other rows the dominant row is


def with_dominant_row(rows: Array) -> Array:
    """Return rows of which the first is a million times as large as it was."""
    planted = rows.copy()
    planted[0] *= TIMES
    return planted


def changing_rosters(liar: Liar) -> Found:
    """Solve for one site's sums from totals over all sets of sites that leave one site out."""
    names = liar.names
    rosters = list(itertools.combinations(names, max(1, len(names) - 1)))
    totals = []
    for roster in rosters:
        liar.begin_among(roster)
        n, sums, products = honest_moments(liar)
        totals.append(np.concatenate([[n], sums, products.ravel()]))
    takes_part = np.array([[name in roster for name in names] for roster in rosters], float)
    own = np.linalg.solve(takes_part, np.array(totals))[0]
    d = round(np.sqrt(len(own) - 0.75) - 0.5)  # since there are 1 + d + d^2 numbers
    return HonestMoments(round(own[0]), own[1 : d + 1], own[d + 1 :].reshape(d, d)).found


def dominant_row(liar: Liar) -> Found:
    """Read a row that has nearly the whole sum of squares as the leading component of X'X.

    The row has an extreme value, or nearly all of the weight, which is then the total weight.
    """
    d = int(liar.ask_one("column_names")["n_features"])
    totals = liar.ask("count_and_sum", features=names_to_bytes(None), missing=np.int64(ERROR))
    values, vectors = np.linalg.eigh(products_about(liar, d))
    row = vectors[:, -1] * np.sqrt(values[-1])
    row = row if row @ totals["total"] > 0 else -row
    return Found(np.array([row, row / np.sqrt(totals["weight"])]))
