"""The rounds before every solver: the common features, n, the mean and the scale.

With ``x`` running over the rows of all sites,

    m = sum x / n,   s_j^2 = sum (x_j - m_j)^2 / n.

The mean is the global one. Centring each site on its own mean would throw the variance between sites
away, and raw second moments would lose the digits that an offset takes up; so the mean is asked
first, and everything else is asked about it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca.errors import InputError
from fedpca.federation import Federation
from fedpca.framed import column_sums, usable_energy
from fedpca.message import Array
from fedpca.question import question
from fedpca.rows import column_order, refuse_non_finite

if TYPE_CHECKING:
    from fedpca.site import Site


@dataclass(frozen=True)
class Moments:
    """What all sites together know of their rows before a solver starts."""

    n: int
    mean: Array
    scale: Array
    features: tuple[str, ...] | None

    @property
    def d(self) -> int:
        """The number of features."""
        return len(self.mean)


@question(
    answers={"features": "uint8 bytes", "n_features": "int64"}, remembers=True, reads_rows=False
)
def introduce(site: Site) -> dict[str, Any]:
    """The names of a site's columns, as JSON, and their number.

    The site remembers that it told them: one that is started again must have the same rows.
    """
    return {"features": _to_bytes(site.rows.features), "n_features": np.int64(site.rows.n_features)}


@question(
    asks={"features": "uint8 bytes"},
    answers={"n": "int64", "total": "float64 d"},
    remembers=True,
)
def totals(site: Site, features: Array) -> dict[str, Any]:
    """The number of rows and the sum of each column, in the order of ``features``."""
    n, total = column_sums(site.rows)
    if not np.isfinite(total).all():
        refuse_non_finite(site.rows)
    site.memory["sums"] = total
    order = own_order(site, features)
    if order is None:
        return {"n": np.int64(n), "total": total}
    site.memory["order"] = np.array(order)
    return {"n": np.int64(n), "total": total[order]}


def own_order(site: Site, features: Array) -> list[int] | None:
    """Where the features of a message stand among a site's columns; None where they stand alike."""
    wanted, own = _from_bytes(features), site.rows.features
    return None if wanted is None or own is None else column_order(wanted, own, "its columns")


@question(asks={"mean": "float64 d"}, answers={"squares": "float64 d"}, remembers=True)
def spread(site: Site, mean: Array) -> dict[str, Any]:
    """The sum of squares of each column about the mean."""
    site.memory |= {"mean": mean, "scale": np.ones_like(mean)}
    return {"squares": site.framed.squares()}


@question(
    asks={"mean": "float64 d", "scale": "float64 d", "n_products": "int64"},
    answers={"energy": "float64"},
    remembers=True,
)
def settle(site: Site, mean: Array, scale: Array, n_products: Array) -> dict[str, Any]:
    """The sum of squares of all rows about the mean and in the scale, which the site keeps."""
    site.memory |= {"mean": mean, "scale": scale, "n_products": n_products}
    site.memory["energy"] = site.framed.squares().sum()
    return {"energy": site.memory["energy"]}


@dataclass(frozen=True)
class CommonFeatures:
    """The features that all sites have."""

    n_features: int
    features: tuple[str, ...] | None
    in_order: bool  # whether they stand in the same order everywhere

    @property
    def to_ask(self) -> Array:
        """The names as a field of a message, or nothing where no site needs them."""
        return _to_bytes(None if self.in_order else self.features)


def moments(fed: Federation, common: CommonFeatures, *, center: bool, scale: bool) -> Moments:
    """The n, mean and scale of all sites' rows, each exactly that of the pooled rows."""
    sums = fed.sum(totals, features=common.to_ask)
    n, d = int(sums["n"]), len(sums["total"])
    mean = sums["total"] / at_least_two(n)
    factors = np.ones(d)
    if scale:  # the standard deviation is about the mean, even where the components are not
        factors = _scale(fed.sum(spread, mean=mean)["squares"] / n, mean, n)
    return Moments(n, mean if center else np.zeros(d), factors, common.features)


def at_least_two(n: int) -> int:
    """The number of all sites' rows, or an error where components cannot be had of so few."""
    if n < 2:
        raise InputError(f"all sites together have n_samples={n}; components need at least 2 rows")
    return n


def settle_frame(fed: Federation, known: Moments, n_products: int) -> float:
    """Give every site the mean and the scale; the total sum of squares comes back.

    ``n_products`` says how many columns the rows will likely be multiplied with.
    """
    answer = fed.sum(settle, mean=known.mean, scale=known.scale, n_products=np.int64(n_products))
    return usable_energy(float(answer["energy"]))


def common_features(fed: Federation) -> CommonFeatures:
    """The features that all sites have, compared before anything is asked about rows.

    The order is that of the first site.
    """
    found = fed.gather(introduce)
    first, *others = found
    reference = _from_bytes(found[first]["features"])
    n_features = int(found[first]["n_features"])
    in_order = True
    for name in others:
        features = _from_bytes(found[name]["features"])
        d = int(found[name]["n_features"])
        where = f"site {name!r}, compared with site {first!r}"
        if (features is None) != (reference is None):
            raise InputError(f"{where}: one has column names and the other has none; name both")
        if features is not None and reference is not None:
            in_order &= column_order(reference, features, where) is None
        elif d != n_features:
            raise InputError(f"{where}: {d} columns instead of {n_features}")
    if n_features < 1:
        raise InputError("0 feature(s): the rows have no columns while a minimum of 1 is required")
    fed.n_features = n_features
    return CommonFeatures(n_features, reference, in_order)


def _scale(variance: Array, mean: Array, n: int) -> Array:
    """The standard deviations, with 1 for columns that are constant up to rounding.

    The bound is that of scikit-learn's StandardScaler: the variance that rounding alone can leave.
    """
    eps = np.finfo(np.float64).eps
    constant = variance <= n * eps * variance + (n * mean * eps) ** 2
    return np.where(constant, 1.0, np.sqrt(np.where(constant, 1.0, variance)))


def _to_bytes(names: Sequence[str] | None) -> Array:
    return np.frombuffer(b"" if names is None else json.dumps(list(names)).encode(), np.uint8)


def _from_bytes(array: Array) -> tuple[str, ...] | None:
    return tuple(str(name) for name in json.loads(array.tobytes())) if array.size else None
