"""Attack sites whose rows have columns that the liar knows, with published methods.

If K holds the known columns, ``(n, m)``, and x is a column that the liar does not know, an honest run
reveals ``K'x`` as a part of X'X: m linear equations for n values.

- With as many known columns as rows, the equations have one solution (Huth et al., 2023). Where
  analysts may have columns computed at a site, they can construct the known columns. No question of
  fedpca does so: a coordinator chooses means, scales, directions, and variants, and all of these only
  combine columns that the site has. What can supply known columns: a register that the liar can
  link, columns that the site's staff adds on request, such as a row number or splines of a known date,
  and genotypes of people whose genomes are known.
- With known flags, ``K'x`` counts x over subsets of the rows. If x consists of flags as well, the
  counts determine it even with noise in them, unless there is enough noise (Dinur and Nissim, 2003).
- If the known values have several digits and x consists of flags, a few known columns suffice: the
  equations are a multidimensional subset sum problem (Nasirigerdeh et al., 2021). In that paper,
  a federated PCA reveals each sample's scores, and a regression on them reveals the sums of the scores
  over all samples with a flag. No program of fedpca reveals the score of a row, and there is no
  regression. But the components turn X'x into the sums of the scores, so whoever knows the scores from
  elsewhere, such as a published plot, needs nothing more.

Sources: Huth, Arruda, Gusinow, Contento, Tacconelli, and Hasenauer, "Accessibility of covariance
information creates vulnerability in federated learning frameworks" (2023); Nasirigerdeh,
Torkzadehmahani, Baumbach, and Blumenthal, "On the privacy of federated pipelines" (2021); Dinur and
Nissim, "Revealing information while preserving privacy" (2003).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import numpy as np
from scipy.optimize import lsq_linear

from fedpca.arrays import Array
from fedpca.audit.lattice import subset_of_sum
from fedpca.audit.liar import Found, Liar, Refused
from fedpca.audit.lying_sums import honest_moments
from fedpca.linalg.dense import unpack_triangle
from fedpca.privacy.gaussian import Privacy
from fedpca.protocol.plan import PRIVATE, RunPlan
from fedpca.rows.bounded import RADIUS
from fedpca.solvers.common_features import names_to_bytes

N_LINKED = 24  # rows of a site whose known columns are as many as its rows
N_FLAGGED = 30  # rows of a site with known values and secret flags
N_VALUES = 4  # columns of known values
DECIMAL_PLACES = 3  # decimal places of the known values
N_COUNTED, N_SUBSETS = 30, 60  # rows of a site with known flags, and their number
N_SECRET = 12  # columns of secret flags
FEWEST = 0.4  # the smallest share of rows with a planted flag; the largest share is 1 minus this
LITTLE_NOISE, ENOUGH_NOISE = 1000.0, 1.0  # epsilons
N_REPEATED = 20  # private runs with enough noise
KNOWN_VALUES_DELTA = 1e-6
HALF = 0.5  # the point between the flags 0 and 1


def flags(rng: np.random.Generator, n: int, d: int) -> Array:
    """Return random flags, ``(n, d)``, none of which is rare."""
    low = int(np.ceil(FEWEST * n))
    counts = rng.integers(low, n - low + 1, d)
    return np.column_stack([rng.permutation(np.arange(n) < count) for count in counts]).astype(
        float
    )


def with_known_columns(rows: Array) -> Array:
    """Return a few of the rows, with as many additional columns as rows."""
    few = rows[:N_LINKED]
    return np.column_stack([few, np.random.default_rng(1).normal(size=(len(few), len(few)))])


def values_and_flags(rows: Array) -> Array:
    """Return rows with a few columns of values, and six columns of flags."""
    rng = np.random.default_rng(2)
    values = rng.normal(size=(N_FLAGGED, N_VALUES)).round(DECIMAL_PLACES)
    return np.column_stack([values, flags(rng, N_FLAGGED, N_SECRET // 2)])


def many_flags(rows: Array) -> Array:
    """Return rows of flags, with twice as many flags as rows, and some more."""
    return flags(np.random.default_rng(3), N_COUNTED, N_SUBSETS + N_SECRET)


def last_columns(rows: Array) -> list[int]:
    """Return the indices of as many columns at the end as there are rows."""
    return list(range(rows.shape[1] - len(rows), rows.shape[1]))


def known_columns(liar: Liar) -> Found:
    """Solve for all other columns from their products with as many known columns as rows."""
    K, known, secret = _known(liar)
    products = honest_moments(liar).products[np.ix_(known, secret)]
    return _with_columns(liar, secret, np.linalg.lstsq(K.T, products, rcond=None)[0])


def known_values(liar: Liar) -> Found:
    """Find the rows with a flag from a few known columns' sums over these rows, as subset sums."""
    K, known, secret = _known(liar)
    found = honest_moments(liar)
    unit = 10.0**DECIMAL_PLACES
    sizes = np.column_stack([np.ones(len(K)), K * unit])
    totals = np.vstack([found.sums[secret], found.products[np.ix_(known, secret)] * unit])
    whole = np.rint(sizes).astype(np.int64)
    solved = [subset_of_sum(whole, np.rint(total).astype(np.int64)) for total in totals.T]
    columns = [np.full(len(K), HALF) if each is None else each for each in solved]
    return _with_columns(liar, secret, np.array(columns, float).T)


def counted_flags(liar: Liar) -> Found:
    """Find secret flags by least squares from their counts over many known subsets of the rows."""
    K, known, secret = _known(liar)
    found = honest_moments(liar)
    n, sums, products = found.n, found.sums, found.products[np.ix_(known, secret)]
    about_half = products - HALF * (sums[known][:, None] + sums[secret]) + n * HALF**2
    return _with_columns(liar, secret, _decoded(K, about_half))


def noisily_counted_flags(liar: Liar) -> Found:
    """Find secret flags from private runs: from one with little noise, or else from many runs."""
    K, known, secret = _known(liar)
    counts = []
    with suppress(Refused):
        counts.append(_noisy_products(liar, LITTLE_NOISE))
    with suppress(Refused):
        while len(counts) < N_REPEATED and liar.refusals:
            counts.append(_noisy_products(liar, ENOUGH_NOISE))
    if not counts:
        return Found()
    products = np.mean(counts, axis=0)[np.ix_(known, secret)]
    found = _decoded(K, products)
    # flags about one half are halves; far from that, an estimate is nothing but noise
    estimated = np.linalg.lstsq(K.T - HALF, products, rcond=None)[0]
    found[(np.abs(estimated) > 4 * HALF).any(axis=1)] = np.nan
    return _with_columns(liar, secret, found)


def _noisy_products(liar: Liar, epsilon: float) -> Array:
    """Return the products of all columns about one half, ``(d, d)``, from a private run."""
    n_columns = N_SUBSETS + N_SECRET
    # rounding to whole numbers makes rows a little longer
    bound = HALF * np.sqrt(n_columns) * (1 + 4 * np.sqrt(n_columns) / RADIUS)
    privacy = Privacy(epsilon, KNOWN_VALUES_DELTA, row_bound=bound, around=HALF)
    parameters = {"solver": "covariance", "n_components": 1, "missing": "error"}
    settings = {PRIVATE: privacy.to_plain()}
    liar.begin_with(RunPlan("", "FederatedPCA", parameters, liar.roster, privacy=settings))
    d = int(liar.ask_one("column_names")["n_features"])
    liar.ask("noisy_count_and_sum", features=names_to_bytes(None))
    triangle = liar.ask("noisy_scatter", mean=np.full(d, HALF))["triangle"]
    return np.asarray(unpack_triangle(triangle.astype(float)) * (bound / RADIUS) ** 2)


def _decoded(K: Array, products: Array) -> Array:
    """Return flags whose products with known flags, all about one half, are nearest to these."""
    about_half = [lsq_linear(K.T - HALF, each, (-HALF, HALF)).x for each in products.T]
    return (np.array(about_half).T > 0).astype(float)


def _known(liar: Liar) -> tuple[Array, list[int], list[int]]:
    """Return the known columns, ``(n, m)``, their indices, and the indices of the others."""
    known: Mapping[int, Array] = liar.known
    K = np.column_stack(list(known.values()))
    return K, list(known), [j for j in range(liar.n_columns) if j not in known]


def _with_columns(liar: Liar, secret: list[int], columns: Array) -> Found:
    """Return the known columns and the recovered columns together as records."""
    records = np.empty((len(columns), liar.n_columns))
    records[:, list(liar.known)] = np.column_stack(list(liar.known.values()))
    records[:, secret] = columns
    return Found(records)
