"""Find the common features, n, the mean, and the scale, in the rounds before every solver.

    m = sum x / n,   s_j^2 = sum (x_j - m_j)^2 / n,   over the rows x of all sites

The mean is taken over all sites. Centering each site on its own mean would lose the variance between
sites. Raw second moments would lose the digits that an offset takes up. So the coordinator asks for the
mean first, and everything else is summed about it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.errors import InputError
from fedpca.protocol.question import question
from fedpca.rows.columns import column_order
from fedpca.rows.in_memory import refuse_non_finite
from fedpca.rows.standardized import Frame, column_sums, refuse_tiny, usable_energy

if TYPE_CHECKING:
    from fedpca.site.site import Site


@dataclass(frozen=True)
class CommonFeatures:
    """The features that all sites have in common."""

    n_features: int
    names: tuple[str, ...] | None
    in_order: bool  # whether all sites have them in the same order

    @property
    def to_ask(self) -> Array:
        """Return the names as a message field, which is empty if no site must reorder its columns."""
        return names_to_bytes(None if self.in_order else self.names)


@dataclass(frozen=True)
class Moments:
    """The row count, mean, and scale over all sites, found before a solver starts."""

    n: int
    mean: Array  # (d,)
    scale: Array  # (d,)
    features: tuple[str, ...] | None

    @property
    def d(self) -> int:
        """Return the number of features."""
        return len(self.mean)


@dataclass(frozen=True)
class ColumnSums:
    """The sums and the order of a site's columns, which the site remembers."""

    sums: Array  # (d,), in the site's own order
    order: Array | None = None  # (d,), each common feature's column; None if the order is the same

    def frame(self, mean: Array, scale: Array, n_products: int = 1) -> Frame:
        """Return the frame that this site uses to standardize its rows."""
        return Frame(mean, scale, self.order, self.sums, n_products)


@question(
    doing="asking for column names",
    answers={"features": "uint8 bytes", "n_features": "int64"},
    remembers=True,
    reads_rows=False,
)
def column_names(site: Site) -> dict[str, Any]:
    """Send the number of a site's columns, and their names as JSON.

    The site remembers that it answered. If it is restarted, it must still have the same rows.
    """
    names = names_to_bytes(site.rows.features)
    return {"features": names, "n_features": np.int64(site.rows.n_features)}


@question(
    doing="counting rows and adding up columns",
    asks={"features": "uint8 bytes"},
    answers={"n": "int64", "total": "float64 d"},
    remembers=True,
)
def count_and_sum(site: Site, features: Array) -> dict[str, Any]:
    """Count the rows and sum each column, in the order of ``features``."""
    n, total = column_sums(site.rows)
    if not np.isfinite(total).all():
        refuse_non_finite(site.rows)
    order = own_order(site, features)
    site.remember(ColumnSums(total, order))
    return {"n": np.int64(n), "total": total if order is None else total[order]}


def own_order(site: Site, features: Array) -> Array | None:
    """Return the site's column for each common feature, or None if the order is the same."""
    wanted, own = names_from_bytes(features), site.rows.features
    if wanted is None or own is None:
        return None
    order = column_order(wanted, own, "the site")
    return None if order is None else np.array(order)


@question(
    doing="adding up squares",
    asks={"mean": "float64 d"},
    answers={"squares": "float64 d"},
    remembers=True,
)
def squares(site: Site, mean: Array) -> dict[str, Any]:
    """Sum the squares of each column about the mean."""
    site.remember(site.recall(ColumnSums).frame(mean, np.ones_like(mean)))
    return {"squares": site.standardized.squares()}


@question(
    doing="centering and scaling rows",
    asks={"mean": "float64 d", "scale": "float64 d", "n_products": "int64"},
    answers={"energy": "float64"},
    remembers=True,
)
def standardize(site: Site, mean: Array, scale: Array, n_products: Array) -> dict[str, Any]:
    """Store the mean and the scale, and send the sum of squares of the standardized rows."""
    frame = site.recall(ColumnSums).frame(mean, scale, int(n_products))
    site.remember(frame)
    energy = site.standardized.squares().sum()
    site.remember(replace(frame, energy=energy))
    return {"energy": energy}


def common_features(fed: Federation) -> CommonFeatures:
    """Compare the columns of all sites and return the features that they have in common.

    The features are in the first site's order. No question is asked about rows.
    """
    answers = fed.gather(column_names)
    first, *others = answers
    reference = names_from_bytes(answers[first]["features"])
    n_features = int(answers[first]["n_features"])
    in_order = True
    for name in others:
        features = names_from_bytes(answers[name]["features"])
        d = int(answers[name]["n_features"])
        where = f"site {name!r}, compared with site {first!r}"
        if (features is None) != (reference is None):
            raise InputError(
                f"{where}: one has column names and the other has none; name the columns of both"
            )
        if features is not None and reference is not None:
            in_order &= column_order(reference, features, where) is None
        elif d != n_features:
            raise InputError(f"{where}: {d} columns instead of {n_features}")
    if n_features < 1:
        raise InputError("0 feature(s): the rows have no columns while a minimum of 1 is required")
    fed.bind(d=n_features)
    return CommonFeatures(n_features, reference, in_order)


def ask_moments(fed: Federation, common: CommonFeatures, *, center: bool, scale: bool) -> Moments:
    """Ask for n, the mean, and the scale over all sites; they equal those of the pooled rows."""
    sums = fed.sum(count_and_sum, features=common.to_ask)
    n, d = int(sums["n"]), len(sums["total"])
    mean = sums["total"] / at_least_two(n)
    refuse_tiny(mean)
    factors = np.ones(d)
    if scale:  # the standard deviation is about the mean, even if the components are not
        factors = _deviations(fed.sum(squares, mean=mean)["squares"] / n, mean, n)
    return Moments(n, mean if center else np.zeros(d), factors, common.names)


def at_least_two(n: int) -> int:
    """Return the total row count; refuse fewer than two rows."""
    if n < 2:
        raise InputError(f"all sites together have n_samples={n}; at least 2 rows are required")
    return n


def standardize_sites(fed: Federation, moments: Moments, n_products: int) -> float:
    """Send the mean and scale to every site; return the sum of squares of all standardized rows.

    ``n_products`` is an estimate of how many columns the rows will be multiplied by.
    """
    answer = fed.sum(
        standardize, mean=moments.mean, scale=moments.scale, n_products=np.int64(n_products)
    )
    return usable_energy(float(answer["energy"]))


def names_to_bytes(names: Sequence[str] | None) -> Array:
    """Encode feature names as a message field."""
    return np.frombuffer(b"" if names is None else json.dumps(list(names)).encode(), np.uint8)


def names_from_bytes(array: Array) -> tuple[str, ...] | None:
    """Decode the feature names that `names_to_bytes` encoded."""
    return tuple(str(name) for name in json.loads(array.tobytes())) if array.size else None


def _deviations(variance: Array, mean: Array, n: int) -> Array:
    """Return the standard deviations, with 1 for columns that are constant up to rounding.

    The bound is the variance that rounding alone can cause, as in scikit-learn's StandardScaler.
    """
    eps = np.finfo(np.float64).eps
    constant = variance <= n * eps * variance + (n * mean * eps) ** 2
    return np.where(constant, 1.0, np.sqrt(np.where(constant, 1.0, variance)))
