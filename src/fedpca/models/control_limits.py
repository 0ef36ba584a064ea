"""Tell which rows a model does not describe: Hotelling's T2, the residual Q, and their limits.

    T2 = sum_j t_j^2 / l_j,   Q = |x|^2 - |t|^2,   x = (row - m) / s,   t = C x

T2 is large if a row is far from the mean along the components. Q, also called SPE, is large if the row
is far from the span of the components. If rows are normally distributed, then for n fitted rows and k
components

    T2 of a fitted row   ~  (n - 1)^2 / n  Beta(k / 2, (n - k - 1) / 2)
    T2 of a new row      ~  k (n^2 - 1) / (n (n - k))  F(k, n - k)

Q is a weighted sum of squares of normal numbers. Its limit follows from ``s_i``, the traces of the
first three powers of the residual covariance (`fedpca.linalg.residual`), as the quantile of

    Q  ~  s1 + (X - f) s3 / s2,   X ~ chi2(f),   f = s2^3 / s3^2

which has the same mean, variance, and skewness as Q. The formula of Jackson and Mudholkar is an
alternative, which approximates the distribution of Q by that of a power of a normal number. Traces from
few rows are themselves uncertain. So for a new row, X is f times an F-distributed number, whose second
number of degrees of freedom is that of the estimated mean of Q.

The limits can be computed without rows. The flags cannot, so only those who have the rows can compute
them.

Sources: Hotelling (1947); Tracy, Young and Mason, "Multivariate control charts for individual
observations" (1992); Jackson and Mudholkar, "Control procedures for residuals associated with principal
component analysis" (1979); Pearson, "Note on an approximation to the distribution of non-central chi2"
(1959), whose three moments Imhof (1961) compares with the exact distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.special import betaincinv, chdtri, fdtri, ndtri

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.linalg.residual import of_even_noise, without_bias
from fedpca.models.linear import Model
from fedpca.rows.in_memory import is_sparse

ALPHA = 0.01  # share of ordinary rows beyond a limit
LIMIT_METHODS = ("moments", "jackson-mudholkar")
SPECTRUM, EVEN_NOISE = "residual spectrum", "even noise"


@dataclass(frozen=True)
class ControlLimits:
    """The limits beyond which a row is flagged.

    Parameters
    ----------
    t2, q : float
        The limits of T2 and of Q. Q has the limit 0 if the model explains all variance.
    alpha : float
        The share of ordinary rows that are beyond each limit.
    is_for_new_rows : bool
        Whether the limits are for rows that the model was not fitted to.
    basis : str
        What is known about the variance outside the components: "residual spectrum" if its spectrum is
        known, or "even noise" if the variance is assumed to be the same in all directions.
    """

    t2: float
    q: float
    alpha: float
    is_for_new_rows: bool
    basis: str


class RowFlags(NamedTuple):
    """T2 and Q of each row, and whether they are beyond their limits."""

    t2: Array  # (n,)
    q: Array  # (n,)
    limits: ControlLimits

    @property
    def beyond_t2(self) -> Array:
        """Return which rows are far from the mean along the components, ``(n,)``."""
        return np.asarray(self.t2 > self.limits.t2)

    @property
    def beyond_q(self) -> Array:
        """Return which rows are far from the components, ``(n,)``."""
        return np.asarray(self.q > self.limits.q)

    @property
    def flagged(self) -> Array:
        """Return which rows are beyond either limit, ``(n,)``."""
        return np.asarray(self.beyond_t2 | self.beyond_q)


def control_limits(
    model: Model,
    *,
    is_centered: bool = True,
    traces: Array | None = None,
    alpha: float = ALPHA,
    is_for_new_rows: bool = True,
    method: str = LIMIT_METHODS[0],
) -> ControlLimits:
    """Return the limits of T2 and Q from what a model contains about the fitted rows.

    ``traces``, ``(3,)``, are those of the first three powers of the sample covariance outside the
    components, divided by the same powers of the total variance. Without them, the variance outside the
    components is assumed to be the same in all directions.
    """
    if not isinstance(alpha, float | int) or not 0 < alpha < 1:
        raise InputError(f"alpha={alpha!r} must be between 0 and 1, as in {ALPHA}")
    if method not in LIMIT_METHODS:
        raise InputError(f"method={method!r} must be one of {', '.join(map(repr, LIMIT_METHODS))}")
    n, k = rows_behind(model), int(model.has_variance().sum())
    if n < k + 3:
        raise InputError(
            f"limits for {k} components need at least {k + 3} fitted rows, not {n:,.0f}; use fewer "
            "components"
        )
    given = _spread(model) if traces is None else np.asarray(traces, float)
    q = float(model.total_variance) * q_limit(
        given,
        n,
        model.components.shape[1] - k,
        k,
        alpha,
        is_centered=is_centered,
        is_for_new_rows=is_for_new_rows,
        method=method,
    )
    t2 = t2_limit(n, k, alpha, is_centered=is_centered, is_for_new_rows=is_for_new_rows)
    basis = EVEN_NOISE if traces is None else SPECTRUM
    return ControlLimits(t2, q, float(alpha), is_for_new_rows, basis)


def rows_behind(model: Model) -> float:
    """Return how many rows a model was fitted to, or their weight; 0 if no component varies."""
    positive = model.has_variance()
    if not positive.any():
        return 0.0
    return float(model.singular_values[0] ** 2 / model.explained_variance[0]) + 1


def _spread(model: Model) -> Array:
    """Return the traces of a residual covariance with the same variance in all directions."""
    k, d = model.components.shape
    explained = float(model.explained_variance.sum() / model.total_variance)
    return of_even_noise(max(0.0, 1 - explained), max(1, d - k))


def checked_traces(given: Any) -> Array:
    """Return the traces from a file's header, or raise a ValueError if they are malformed."""
    traces = np.array(given, float)
    if traces.shape != (3,) or not np.isfinite(traces).all() or traces.min() < 0:
        raise ValueError("the residual traces must be 3 finite numbers, none of them negative")
    return traces


def t2_limit(
    n: float, k: int, alpha: float, *, is_centered: bool = True, is_for_new_rows: bool = True
) -> float:
    """Return the limit of T2 for variances that are sums of squares over n rows, divided by n - 1."""
    if not k:
        return 0.0
    m = n if is_centered else n + 1  # without centering, no degree of freedom is lost
    if is_for_new_rows:
        spread = (n + 1) / n if is_centered else 1.0
        return float(spread * (n - 1) * k / (m - k) * fdtri(k, m - k, 1 - alpha))
    share = betaincinv(k / 2, (m - k - 1) / 2, 1 - alpha)
    return float((n - 1) * ((n - 1) / n if is_centered else 1.0) * share)


def q_limit(
    traces: Array,
    n: float,
    n_directions: int,
    k: int,
    alpha: float,
    *,
    is_centered: bool = True,
    is_for_new_rows: bool = True,
    method: str = LIMIT_METHODS[0],
) -> float:
    """Return the limit of Q, given the traces of powers of the residual covariance of n rows.

    The fitted components follow the noise of the fitted rows. So ``n - 1 - k`` rows are left to
    estimate the noise. A fitted row is closer to the components than the noise suggests, and a new row
    is farther away.
    """
    if n_directions < 1 or traces[0] <= 0:
        return 0.0
    mean = 1 if is_centered else 0
    freedom = n - mean - k
    scatter = traces * (n - 1) ** np.array([1.0, 2.0, 3.0])
    factor = (n + mean + k) / n if is_for_new_rows else freedom / n
    noise = without_bias(scatter, freedom, n_directions)
    scaled = noise * factor ** np.array([1.0, 2.0, 3.0])
    certain = freedom * noise[0] ** 2 / noise[1] if is_for_new_rows else np.inf
    return quantile_of_squares(scaled, alpha, method, freedom=certain)


def quantile_of_squares(
    traces: Array, alpha: float, method: str = LIMIT_METHODS[0], *, freedom: float = np.inf
) -> float:
    """Return the value that ``|x|^2`` exceeds with probability alpha.

    ``traces`` are those of powers of the covariance of x. If the mean of ``|x|^2`` is an estimate,
    ``freedom`` is the estimate's degrees of freedom. The formula of Jackson and Mudholkar assumes that
    the mean is known.
    """
    s1, s2, s3 = traces
    power = 1 - 2 * s1 * s3 / (3 * s2**2)
    # the formula takes a root of this degree, which must be positive; three moments always serve
    if method == "jackson-mudholkar" and power > 0:
        shift = ndtri(1 - alpha) * np.sqrt(2 * s2 * power**2) / s1
        return float(s1 * (1 + shift + s2 * power * (power - 1) / s1**2) ** (1 / power))
    f = s2**3 / s3**2
    x = chdtri(f, alpha) if np.isinf(freedom) else f * fdtri(f, freedom, 1 - alpha)
    return float(s1 + (x - f) * s3 / s2)


def t2_and_q(model: Model, X: Any) -> Array:
    """Return T2 and Q of rows, ``(n, 2)``."""
    scores = model.transform(X)
    along, _ = model.inverse_variances()
    if is_sparse(X):
        scaled = (X @ sp.diags_array(1 / model.scale)).tocsr()
        center = model.mean / model.scale
        squares = np.asarray(scaled.multiply(scaled).sum(axis=1)).ravel()
        # expanded, because centering would fill in the zeros
        squares = squares - 2 * (scaled @ center) + center @ center
        # a row within the span of the components may come out just below zero
        q = np.maximum(squares - (scores**2).sum(axis=1), 0.0)
    else:
        q = (((X - model.mean) / model.scale - scores @ model.components) ** 2).sum(axis=1)
    return np.column_stack([(scores**2) @ along, q])
