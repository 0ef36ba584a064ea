"""Account for Gaussian noise: how much of it a promise of differential privacy needs.

    delta(epsilon) = F(-epsilon / mu + mu / 2) - exp(epsilon) F(-epsilon / mu - mu / 2),
    mu^2 = sum of (sensitivity / sigma)^2 over all releases,   F the normal distribution

A release is a sum over rows with normal noise of standard deviation ``sigma`` added to it. Its
sensitivity is how far one row can move the sum. For several releases together, the values of ``mu^2``
simply add up. So ``mu^2`` is what a run spends, and what a site's budget counts.

Two tables are adjacent if one of them has one more row. Whoever sees all releases, and knows all other
rows, can hardly tell whether that row is there: no event is more than ``exp(epsilon)`` times as likely
with it as without it, except with probability ``delta``.

Sources: Dong, Roth, and Su, "Gaussian differential privacy" (2022); Balle and Wang, "Improving the
Gaussian mechanism for differential privacy" (2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.protocol.parameters import check_number, check_whole
from fedpca.protocol.plan import PRIVATE, RunPlan

MIN_EPSILON, MAX_EPSILON, MIN_DELTA, MAX_DELTA = 1e-4, 1e6, 1e-15, 0.1
MEAN_SHARE = 0.05  # share of mu^2 for the count and the mean; the rest is for the scatter
MAX_NOISY_PRODUCTS = 100  # the largest number of products that may share the rest of mu^2
# share by which rounding, and noise in whole numbers, may change epsilon and delta
DISCRETE_SLACK = 1e-7
XTOL = 1e-20  # so small that even small roots are found to all digits


@dataclass(frozen=True)
class Privacy:
    """A promise of differential privacy for every row, and the settings that keep it.

    Parameters
    ----------
    epsilon, delta : float
        The promise: adding or removing one row changes the probability of any result by at most a
        factor of ``exp(epsilon)``, except with probability ``delta``, which should be much smaller than
        one over the number of rows. With an infinite epsilon, rows are bounded, but no noise is added
        and nothing is promised.
    row_bound : float
        The largest distance of a row from the mean. Rows that are farther away are moved to this
        distance. Choose it from what is known about the domain, never by looking at the rows.
    around : float or sequence of float
        A point near which rows are expected, chosen without looking at them. When the mean is computed,
        rows farther than twice ``row_bound`` from this point are moved to that distance.
    n_silent : int
        How many sites may add no noise, or reveal their noise, without breaking the promise for the
        rows of all other sites. This matters only with secure sums, where sites share the noise.
    n_products : int
        The number of noisy products in a fit to a table that has too many features to sum its scatter.

    Examples
    --------
    >>> from fedpca import Privacy
    >>> round(Privacy(epsilon=1.0, delta=1e-6, row_bound=8.0).mu, 4)
    0.2367
    """

    epsilon: float
    delta: float
    row_bound: float
    around: float | tuple[float, ...] = 0.0
    n_silent: int = 1
    n_products: int = 5

    def __post_init__(self) -> None:
        if self.epsilon != math.inf:
            check_number("epsilon", self.epsilon, MIN_EPSILON, MAX_EPSILON)
        check_number("delta", self.delta, MIN_DELTA, MAX_DELTA)
        check_number("row_bound", self.row_bound, 1e-100, 1e100)
        check_whole("n_silent", self.n_silent, 0, 10**6)
        check_whole("n_products", self.n_products, 1, MAX_NOISY_PRODUCTS)
        plain = {name: float(getattr(self, name)) for name in ("epsilon", "delta", "row_bound")}
        plain |= {name: int(getattr(self, name)) for name in ("n_silent", "n_products")}
        for name, value in plain.items():  # a plan cannot hold numpy's numbers
            object.__setattr__(self, name, value)
        object.__setattr__(self, "around", _checked_point(self.around))

    @property
    def mu(self) -> float:
        """Return the mu of all releases of a run together."""
        return mu_of(self.epsilon, self.delta)

    def spent(self, share: float) -> float:
        """Return the mu^2 of a release that takes this share of the run's mu^2."""
        return share * self.mu**2

    @property
    def product_share(self) -> float:
        """Return the share of mu^2 that each noisy product takes."""
        return (1 - MEAN_SHARE) / self.n_products

    def n_noisy(self, plan: RunPlan) -> int:
        """Return how many sites share the noise of a release.

        Without secure sums, the coordinator sees each answer, so each site adds the full noise.
        """
        if not plan.is_secure:
            return 1
        return max(1, len(plan.sites) - self.n_silent)

    def to_plain(self) -> dict[str, Any]:
        """Return the settings as plain values, for a plan or a file."""
        plain = asdict(self)
        around = plain["around"]
        return {**plain, "around": list(around) if isinstance(around, tuple) else around}

    @classmethod
    def from_plain(cls, given: Mapping[str, Any]) -> Privacy:
        """Return the settings that plain values from `to_plain` stand for; refuse other values."""
        try:
            return cls(**given)
        except TypeError as error:
            raise InputError(f"the privacy settings cannot be read: {error}") from None

    @classmethod
    def of(cls, plan: RunPlan) -> Privacy:
        """Return the settings that a plan declares."""
        return cls.from_plain(plan.privacy[PRIVATE])


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu with which releases keep the promise of epsilon and delta."""
    if math.isinf(epsilon):
        return math.inf
    epsilon, delta = epsilon * (1 - DISCRETE_SLACK), delta * (1 - DISCRETE_SLACK)
    most = 20.0 + 2 * math.sqrt(epsilon)  # mu is near sqrt(2 epsilon)
    return float(brentq(lambda mu: delta_of(epsilon, mu) - delta, 1e-9, most, xtol=XTOL))


def delta_of(epsilon: float, mu: float) -> float:
    """Return the smallest delta that releases with this mu can promise, given epsilon."""
    if mu <= 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    first = log_ndtr(-epsilon / mu + mu / 2)
    second = epsilon + log_ndtr(-epsilon / mu - mu / 2)
    return float(np.exp(first) * -np.expm1(min(second - first, 0.0)))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest epsilon that releases with this mu can promise, given delta."""
    if math.isinf(mu):
        return math.inf
    delta = delta * (1 - DISCRETE_SLACK)
    if delta_of(0.0, mu) <= delta:
        return 0.0
    # a normal distribution has less than delta beyond sqrt(2 log(1 / delta)) deviations
    most = mu * (mu / 2 + math.sqrt(2 * math.log(1 / delta)))
    found = brentq(lambda epsilon: delta_of(epsilon, mu) - delta, 0.0, most, xtol=XTOL)
    return float(found) / (1 - DISCRETE_SLACK)


def noise_variance(sensitivity_squared: float, mu_squared: float, n_noisy: int) -> int:
    """Return the variance, rounded up, of the noise that each site adds; 0 for no noise."""
    if math.isinf(mu_squared):
        return 0
    return math.ceil(sensitivity_squared / (mu_squared * n_noisy))


def around_point(privacy: Privacy, d: int) -> Array:
    """Return the point near which rows are expected, ``(d,)``."""
    point = np.asarray(privacy.around, dtype=np.float64)
    if point.ndim and len(point) != d:
        raise InputError(
            f"around has {len(point)} numbers for {d} features; use one number, or one for each feature"
        )
    return np.broadcast_to(point, d)


def _checked_point(given: Any) -> float | tuple[float, ...]:
    try:
        point = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        point = np.array(np.nan)
    if point.ndim > 1 or not np.isfinite(point).all():
        raise InputError(
            "around must be a finite number, or a list with a finite number for each feature"
        )
    return tuple(point.tolist()) if point.ndim else float(point)
