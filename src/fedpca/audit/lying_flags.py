"""Attack tables of flags with published methods, which need nothing but the X'X of an honest run.

- Products of flags are counts, and only few tables fit many exact counts. The attack looks for
  the numbers of rows with each of the 2^d possible patterns, as whole numbers that give these counts,
  and claims only rows that all such tables have (Garfinkel et al., 2019; Liu et al., 2025).
- If there are more columns than rows, X'X determines the rows up to a rotation. Flags of many columns
  are hardly ever combinations of other rows, so the rotation is the one that makes all entries 0 or 1.
  It is found by independent component analysis (Hyvarinen, 1999), as for inputs behind the gradients of
  a network (Kariyappa et al., 2023), and then rounding. Every claim is checked: the entries are exactly
  0 or 1, and the row lies in the space that X'X spans.

Sources: Garfinkel, Abowd, and Martindale, "Understanding database reconstruction attacks on public
data" (2019); Liu, Xiao, Thaker, Smith, and Wu, "Generate-then-verify: reconstructing data from limited
published statistics" (2025); Hyvarinen, "Fast and robust fixed-point algorithms for independent
component analysis" (1999); Kariyappa, Guo, Maeng, Xiong, Suh, Qureshi, and Lee, "Cocktail party attack:
breaking aggregation-based privacy in federated learning using independent component analysis" (2023).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from fedpca.arrays import Array
from fedpca.audit.liar import Found, Liar
from fedpca.audit.lying_known import HALF, flags
from fedpca.audit.lying_sums import IS_ONE, HonestMoments, honest_moments
from fedpca.linalg.dense import orth
from fedpca.rows.gaps import ERROR
from fedpca.solvers.common_features import names_to_bytes

N_STAGED, N_STAGES = 36, 3  # rows and stages of a disease in the planted table with few columns
N_WIDE, D_WIDE = 30, 400  # rows and columns of the planted table with many columns
MAX_PATTERN_COLUMNS = 12  # with more columns, there are too many patterns
N_ICA_STARTS = 30
MAX_ICA_STEPS = 60  # of one independent component analysis
MAX_ROUNDINGS = 30
IS_STILL = 1e-6  # directions that turn by less have settled
IS_EXACT = 1e-6  # error of an entry in the space of all rows up to which a row lies in it
NULL = 1e-9  # share of the largest eigenvalue up to which an eigenvalue is only rounding
PER_RUN = 12  # directions that a run multiplies by; three runs have more directions than rows


def few_flags(rows: Array) -> Array:
    """Return rows with flags for three stages of a disease, a drug, and a second drug after it."""
    rng = np.random.default_rng(4)
    stages = rng.permutation(np.repeat(np.eye(N_STAGES), N_STAGED // N_STAGES, axis=0))
    order = rng.permutation(N_STAGED)
    treated = [(order < count).astype(float) for count in (24, 12)]
    return np.column_stack([stages, *treated])


def wide_flags(rows: Array) -> Array:
    """Return a table of flags with far more columns than rows."""
    return flags(np.random.default_rng(5), N_WIDE, D_WIDE)


def patterns(liar: Liar) -> Found:
    """Find the rows that every table of flags with the same counts has, by integer programming."""
    found = honest_moments(liar)
    d = len(found.sums)
    if d > MAX_PATTERN_COLUMNS:
        return Found()
    possible = (np.arange(1 << d)[:, None] >> np.arange(d) & 1).astype(float)
    pairs = np.tril_indices(d)
    counted = np.vstack([np.ones(1 << d), (possible[:, pairs[0]] * possible[:, pairs[1]]).T])
    counts = np.rint(np.concatenate([[found.n], found.products[pairs]]))

    def table(cost: Array) -> Array:
        solved = milp(
            cost,
            constraints=LinearConstraint(counted, counts, counts),
            integrality=np.ones(1 << d, int),
            bounds=Bounds(0, found.n),
        )
        # without a solution, the table does not consist of flags
        return np.zeros(1 << d, int) if solved.x is None else np.rint(solved.x).astype(int)

    certain = table(np.zeros(1 << d))
    for pattern in np.flatnonzero(certain):
        if certain[pattern]:
            certain = np.minimum(certain, table((np.arange(1 << d) == pattern).astype(float)))
    return Found(np.repeat(possible, certain, axis=0))


def independent_rows(liar: Liar) -> Found:
    """Rotate a factor of X'X until its rows are independent flags."""
    return rows_of_flags(honest_moments(liar))


def independent_rows_of_products(liar: Liar) -> Found:
    """Find X'X from products with more directions than rows, over several runs, and rotate a factor.

    If Z has at least as many columns as X has rows, and ``Y = X'X Z``, then ``X'X = Y (Z'Y)^-1 Y'``.
    """
    Z, n_left = np.empty((0, 0)), 1
    products: list[Array] = []
    while n_left > 0:
        liar.again()
        d = int(liar.ask_one("column_names")["n_features"])
        totals = liar.ask("count_and_sum", features=names_to_bytes(None), missing=np.int64(ERROR))
        n = int(totals["n"])
        liar.ask("standardize", mean=np.zeros(d), scale=np.ones(d), n_products=np.int64(PER_RUN))
        if not products:
            Z = orth(np.random.default_rng(0).normal(size=(d, min(d, n + PER_RUN))))
        first = PER_RUN * len(products)
        products.append(liar.ask("covariance_product", Z=Z[:, first : first + PER_RUN])["Y"])
        n_left = n - first - PER_RUN
    Y = np.hstack(products)
    inner = Z[:, : Y.shape[1]].T @ Y
    gram = Y @ np.linalg.pinv((inner + inner.T) / 2, rcond=NULL, hermitian=True) @ Y.T
    return rows_of_flags(HonestMoments(n, totals["total"], np.rint(gram)))


def rows_of_flags(found: HonestMoments) -> Found:
    """Return the rows of flags with these moments, or those of them that are found."""
    n, d = found.n, len(found.sums)
    mean = found.sums / n
    if d <= n or (np.abs(found.products.diagonal() - found.sums) > IS_ONE).any():
        return Found(facts=found.found.facts)
    deviations = np.sqrt(np.maximum(mean * (1 - mean), IS_ONE))
    scatter = (found.products - n * np.outer(mean, mean)) / np.outer(deviations, deviations)
    values, vectors = np.linalg.eigh(scatter)
    factor = vectors[:, values > NULL * values[-1]].T * np.sqrt(d)
    rng = np.random.default_rng(0)
    rows: list[Array] = []
    directions = np.empty((0, len(factor)))
    for _ in range(N_ICA_STARTS):
        left = np.linalg.svd(directions)[2][len(directions) :]
        if len(rows) >= n - 1 or not len(left):
            break
        # the rows about their mean add up to zero, so those that are left share what the others lack
        shared = -directions.sum(axis=0) / (n - len(directions))
        apart = _rotation(left @ factor, rng) @ left * np.sqrt(max(1 - shared @ shared, 0.0))
        starts = shared + np.vstack([apart, -apart])
        for record, direction in zip(*_rounded(starts, factor, mean, deviations), strict=True):
            if not any(np.array_equal(record, row) for row in rows):
                rows.append(record)
                directions = np.vstack([directions, direction])
    if len(rows) == n - 1:
        rows.append(np.rint(found.sums - np.sum(rows, axis=0)))
    return Found(np.array(rows) if rows else None, facts=found.found.facts)


def _rotation(whitened: Array, rng: np.random.Generator) -> Array:
    """Return directions in which uncorrelated mixtures are independent, by the fourth moment."""
    m, d = whitened.shape
    turned = orth(rng.normal(size=(m, m)))
    for _ in range(MAX_ICA_STEPS):
        before = turned
        gradient = (turned @ whitened) ** 3 @ whitened.T / d - 3 * turned
        left, _, right = np.linalg.svd(gradient)
        turned = left @ right
        if np.abs(np.abs(np.sum(turned * before, axis=1)) - 1).max() < IS_STILL:
            break
    return np.asarray(turned)


def _rounded(
    directions: Array, factor: Array, mean: Array, deviations: Array
) -> tuple[Array, Array]:
    """Round what the directions show to flags, and turn the directions to these, until nothing changes.

    Return only the flags that lie in the space of all rows, and their directions.
    """
    for _ in range(MAX_ROUNDINGS):
        records = (mean + deviations * (directions @ factor) > HALF).astype(float)
        entries = (records - mean) / deviations
        turned = entries @ factor.T / factor.shape[1]
        is_row = np.abs(turned @ factor - entries).max(axis=1) < IS_EXACT
        turned /= np.maximum(np.linalg.norm(turned, axis=1, keepdims=True), NULL)
        if np.allclose(turned, directions):
            break
        directions = turned
    return records[is_row], turned[is_row]
