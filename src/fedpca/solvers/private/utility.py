"""Tell how much variance a private fit will keep, before any budget is spent.

    share = sum_j v_j' C v_j / sum of the k largest eigenvalues of C,   v_j from  n C + n f f' + E

The covariance C of the rows is guessed, or known from public data. Its eigenvalues suffice, since the
noise has no preferred direction. The noise E of the scatter and the offset f of the mean are drawn like
those that sites would cause. No rows are needed, so planning costs no privacy.

A large matrix is drawn on a smaller scale. Its eigenvalues are thinned out, except for the leading
ones, and the noise is raised so that its norm ``s sqrt(2 d)`` stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.linalg.dense import top_eigen
from fedpca.privacy.gaussian import Privacy
from fedpca.protocol.plan import NO_KEY, PRIVATE, SECURE, RunPlan
from fedpca.rows.bounded import RADIUS
from fedpca.solvers.private.at_site import (
    AROUND_TIMES,
    COUNT_UNIT,
    scatter_variance,
    sum_variance,
)

MAX_SIDE = 400  # largest side of a drawn matrix
N_DRAWS, N_SMALL = 15, 60  # draws of a large matrix, and of one below SMALL_SIDE
SMALL_SIDE = 100


def expected_share(
    privacy: Privacy,
    variances: Sequence[float] | Array,
    n_rows: float,
    n_components: int,
    n_sites: int,
    *,
    secure: bool = True,
    center: bool = True,
    random_state: int = 0,
) -> float:
    """Return the share of the exact components' variance that private ones are expected to keep.

    The share is averaged over draws of the noise, for a fit that sums the scatter, which is the default
    for up to 4096 features. If the noise hides little, real fits are within 0.03 of this share on
    average. If it hides half of the variance, fits differ, and the estimate may be off by 0.1.

    Parameters
    ----------
    privacy : Privacy
        The promise. If rows are typically longer than its ``row_bound``, all rows are assumed to be
        shortened by the same factor.
    variances : array of shape (n_features,)
        The variances along the principal components of the rows: a guess, or those of public data. They
        must not come from the private rows themselves.
    n_rows : float
        The number of rows at all sites, or a guess of it.
    n_components : int
        The number of components.
    n_sites : int
        The number of sites.
    secure : bool
        Whether sums are secure, so that the sites share the noise.
    center : bool
        Whether the mean is subtracted.
    random_state : int
        The seed of the drawn noise. It has nothing to do with the noise of a fit.

    Examples
    --------
    >>> from fedpca import Privacy
    >>> from fedpca.solvers.private.utility import expected_share
    >>> privacy = Privacy(epsilon=1.0, delta=1e-6, row_bound=4.0)
    >>> variances = [4.0, 2.0, 1.0] + 17 * [0.1]
    >>> [round(expected_share(privacy, variances, n, 3, 10), 2) for n in (100, 300, 3000)]
    [0.31, 0.8, 1.0]
    """
    spectrum = np.sort(np.asarray(variances, dtype=np.float64))[::-1]
    d = spectrum.size
    if spectrum.ndim != 1 or not d or not np.isfinite(spectrum).all() or spectrum[-1] < 0:
        raise InputError("variances must be finite numbers of at least 0, one for each component")
    if not isinstance(n_components, Integral) or not 1 <= n_components <= d:
        raise InputError(f"n_components={n_components!r} must be a whole number from 1 to {d}")
    if not isinstance(n_sites, Integral) or n_sites < 1 or not n_rows >= 1:
        raise InputError(f"n_sites={n_sites!r} and n_rows={n_rows!r} must be at least 1")
    k, total = int(n_components), float(spectrum.sum())
    if not spectrum[:k].sum():
        return 1.0
    settings = {PRIVATE: privacy.to_plain()} | ({SECURE: True} if secure and n_sites > 1 else {})
    sites = {str(i): NO_KEY for i in range(n_sites)}
    plan = RunPlan("plan", "FederatedPCA", {}, sites, privacy=settings)
    unit = privacy.row_bound / RADIUS
    deviation = unit**2 * math.sqrt(n_sites * scatter_variance(plan))
    of_sums = math.sqrt(n_sites * sum_variance(plan))
    small, scale = _thinned(spectrum, k)
    rng = np.random.default_rng(random_state)
    shares = []
    for _ in range(N_SMALL if len(small) < SMALL_SIDE else N_DRAWS):
        E = rng.standard_normal((len(small), len(small))) * (deviation * scale / 2)
        n_told = max(n_rows + of_sums / COUNT_UNIT * rng.standard_normal(), 2.0)
        f = rng.standard_normal(len(small)) * (
            center * of_sums * AROUND_TIMES * unit * scale / n_told
        )
        # rows about a point that is off are longer, and are shortened to the bound
        shrink = min(1.0, privacy.row_bound**2 / (total + float(f @ f)))
        S = n_rows * shrink * (np.diag(small) + np.outer(f, f)) + E + E.T
        V = top_eigen(S, k)[1]
        shares.append(float((small @ V**2).sum()))
    return float(np.mean(shares) / spectrum[:k].sum())


def _thinned(spectrum: Array, k: int) -> tuple[Array, float]:
    """Return fewer variances, and the factor by which the noise must grow to keep its norm."""
    d, n_leading = len(spectrum), min(len(spectrum), k + 20)
    side = max(MAX_SIDE, 2 * n_leading)
    if d <= side:
        return spectrum, 1.0
    rest = spectrum[n_leading:]
    at = ((np.arange(side - n_leading) + 0.5) * len(rest) / (side - n_leading)).astype(int)
    return np.concatenate([spectrum[:n_leading], rest[at]]), math.sqrt(d / side)
