"""Draw what a diagnosis found: unusual rows, odd sites, and the sites that components depend on.

The displays work like those in `fedpca.report.displays`. Single rows appear only where the caller
passes rows of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.estimators.diagnosis import Diagnosis, diagnose
from fedpca.estimators.federated import FederatedPCA
from fedpca.models.control_limits import ControlLimits
from fedpca.report.biplot import MAX_BIPLOT_ROWS, apart
from fedpca.report.contents import Fitted
from fedpca.report.drawing import BLUE, COLORS, GRAY, MARKERS, ORANGE, Drawn, decades, new_axes
from fedpca.report.drawing import label as name_in_plot
from fedpca.solvers.site_map import SiteMap
from fedpca.summary.summary import Summary

MAX_LABELS = 12  # labels of rows or sites in one plot
MIN_AREA, MORE_AREA = 25.0, 300.0  # a site's mark: MIN + MORE * its share of rows, in points^2
LEAST_RATIO = 1e-3  # smallest ratio on a logarithmic axis


@dataclass
class ControlChartDisplay(Drawn):
    """T2 and Q of rows as multiples of their limits; the rows must be the caller's own.

    Parameters
    ----------
    t2, q : ndarray of shape (n,)
        T2 and Q of each row.
    limits : ControlLimits
        The limits of T2 and Q.
    groups : ndarray of str, shape (n,)
        The group of each row.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.report import ControlChartDisplay
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> pca = FederatedPCA(2).fit({"north": rows[:50], "south": rows[50:]})
    >>> own = np.vstack([rows[:50], [[0, 0, 9, 0, 0, 0]]])
    >>> drawn = ControlChartDisplay.from_estimator(pca, own)
    >>> bool(drawn.q[50] > drawn.limits.q)
    True
    """

    t2: Array
    q: Array
    limits: ControlLimits
    groups: Array

    @classmethod
    def from_estimator(
        cls,
        fitted: Fitted | Summary,
        X: Any,
        *,
        limits: ControlLimits | None = None,
        groups: Any = None,
        ax: Any = None,
    ) -> Self:
        """Draw T2 and Q of rows; by default, the limits are those of `FederatedPCA.control_limits`."""
        if not isinstance(fitted, FederatedPCA):
            raise InputError(
                f"a control chart requires a FederatedPCA, got {type(fitted).__name__}; use a model of "
                "fedpca fit --kind pca"
            )
        flags = fitted.flag_rows(X, limits)
        where = np.zeros(len(flags.t2), "<U1") if groups is None else np.asarray(groups).astype(str)
        if len(where) != len(flags.t2):
            raise InputError(
                f"groups has {len(where)} labels; pass one for each of the {len(flags.t2)} rows"
            )
        return cls(flags.t2, flags.q, flags.limits, where).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw a point for each row and lines at the limits; number the rows farthest beyond them."""
        ax = new_axes(ax, (6.0, 5.0))
        x, y = self._times_limit(self.t2, self.limits.t2), self._times_limit(self.q, self.limits.q)
        is_beyond = (x > 1) | (y > 1)
        names = np.unique(self.groups)
        step = max(1, int((~is_beyond).sum()) // MAX_BIPLOT_ROWS)
        for number, name in enumerate(names):
            own = self.groups == name
            color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
            if len(names) == 1:
                color = BLUE
            within = np.flatnonzero(own & ~is_beyond)[::step]
            far = "D" if len(names) == 1 else marker
            look = {"marker": marker, "color": color, "rasterized": True}
            ax.scatter(x[within], y[within], s=10, alpha=0.4, linewidths=0, **look)
            beyond = own & is_beyond
            label = name or f"{int(is_beyond.sum())} of {len(x)} rows beyond a limit"
            edge = ORANGE if len(names) == 1 else "black"
            look |= {"marker": far, "color": edge if len(names) == 1 else color, "edgecolors": edge}
            ax.scatter(x[beyond], y[beyond], s=26, linewidths=0.6, label=label, **look)
        for line in (ax.axvline, ax.axhline):
            line(1, color=GRAY, linestyle="--", linewidth=1)
        for axis, values in (("x", x), ("y", y)):
            decades(ax, axis, max(LEAST_RATIO, values.min()) / 1.6, max(2.0, 1.6 * values.max()))
        ax.set(xlabel="T2 / limit", ylabel="Q (SPE) / limit")
        farthest = np.argsort(-np.maximum(x, y), kind="stable")[:MAX_LABELS]
        for row in farthest[is_beyond[farthest]]:
            style = {"textcoords": "offset points", "fontsize": 7}
            ax.annotate(str(row), (x[row], y[row]), (4, 3), **style)
        rate = f"limits hold {1 - self.limits.alpha:.1%} of ordinary rows each"
        ax.set_title(f"{rate} ({self.limits.basis})", fontsize=9)
        ax.legend(frameon=False, fontsize=8)
        return self._keep(ax)

    @staticmethod
    def _times_limit(values: Array, limit: float) -> Array:
        return np.maximum(values / limit if limit > 0 else np.zeros(len(values)), LEAST_RATIO)


@dataclass
class SiteMapDisplay(Drawn):
    """How far each site's mean and covariance are from those of the other sites.

    Parameters
    ----------
    sites : list of str
        The names of the sites.
    means_apart, spreads_apart : ndarray of shape (n_sites,)
        As in `SiteOnMap`; about 1 if a site differs only by chance.
    rows : ndarray of shape (n_sites,)
        Each site's share of all rows.
    odd : ndarray of bool, shape (n_sites,)
        Which sites stand out.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.report import SiteMapDisplay
    >>> rows = np.random.default_rng(0).normal(size=(4, 90, 6))
    >>> sites = {"north": rows[0], "south": rows[1], "east": rows[2] + 1, "west": rows[3]}
    >>> drawn = SiteMapDisplay.from_estimator(FederatedPCA(2).fit(sites), sites)
    >>> drawn.odd.tolist()
    [False, False, True, False]
    """

    sites: Sequence[str]
    means_apart: Array
    spreads_apart: Array
    rows: Array
    odd: Array

    @classmethod
    def from_estimator(
        cls, fitted: FederatedPCA, X: Any, *, ax: Any = None, **options: Any
    ) -> Self:
        """Ask the sites, as `fedpca.diagnose` does with these options, and draw their map."""
        return cls.from_diagnosis(diagnose(fitted, X, **options), ax=ax)

    @classmethod
    def from_diagnosis(cls, diagnosis: Diagnosis, *, sized: bool = True, ax: Any = None) -> Self:
        """Draw the map of sites in a diagnosis; unless ``sized``, all sites' marks are equal."""
        sites = shown_sites(diagnosis).sites
        each = list(sites.values())
        return cls(
            list(sites),
            np.array([site.means_apart for site in each]),
            np.array([site.spreads_apart for site in each]),
            np.array([site.rows if sized else 1 / len(each) for site in each]),
            np.array([site.is_odd_in_mean or site.is_odd_in_spread for site in each], bool),
        ).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw a mark for each site, sized by its share of rows, and lines at the chance value of 1."""
        ax = new_axes(ax, (6.0, 5.0))
        x, y = (np.maximum(each, LEAST_RATIO) for each in (self.means_apart, self.spreads_apart))
        area = MIN_AREA + MORE_AREA * self.rows
        looks = ((~self.odd, BLUE, "o", "like the others"), (self.odd, ORANGE, "D", "odd"))
        for chosen, color, marker, label in looks:
            if chosen.any():
                style = {"color": color, "marker": marker, "alpha": 0.75, "edgecolors": "white"}
                ax.scatter(x[chosen], y[chosen], s=area[chosen], label=label, **style)
        for line in (ax.axvline, ax.axhline):
            line(1, color=GRAY, linestyle="--", linewidth=1, zorder=0)
        for axis, values in (("x", x), ("y", y)):
            decades(ax, axis, min(0.5, values.min() / 1.6), max(4.0, 2 * values.max()))
        ax.set(xlabel="mean apart from the others (1: by chance)")
        ax.set(ylabel="covariance apart from the others (1: by chance)")
        self._label(ax, x, y)
        ax.legend(frameon=False, fontsize=8)
        return self._keep(ax)

    def _label(self, ax: Any, x: Array, y: Array) -> None:
        """Write sites' names without overlaps; if there are many, prefer the sites that stand out."""
        farthest = np.lexsort((-np.maximum(x, y), ~self.odd))[:MAX_LABELS]
        spots = np.log10(np.column_stack([x, y])[farthest])
        span = np.log10([ax.get_xlim()[1] / ax.get_xlim()[0], ax.get_ylim()[1] / ax.get_ylim()[0]])
        widths = np.array([0.017 * (len(self.sites[i]) + 2) for i in farthest])
        places = apart(spots / span + [0.02, 0.0], widths, 0.045) * span
        for i, place in zip(farthest, places, strict=True):
            arrow = {"arrowstyle": "-", "color": GRAY, "lw": 0.5}
            style = {"fontsize": 8, "ha": "center", "va": "center", "arrowprops": arrow}
            ax.annotate(name_in_plot(self.sites[i]), (x[i], y[i]), 10**place, **style)


@dataclass
class StabilityDisplay(Drawn):
    """How far the components move if one site is left out.

    Parameters
    ----------
    sites : list of str
        The names of the sites, beginning with the one that the components depend on most.
    degrees : ndarray of shape (n_sites,)
        The largest angle between the components with and without the site.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.report import StabilityDisplay
    >>> rows = np.random.default_rng(0).normal(size=(2, 90, 6)) * [4, 1, 1, 1, 1, 1]
    >>> sites = {"north": rows[0], "south": rows[1] * [1, 9, 1, 1, 1, 1]}
    >>> drawn = StabilityDisplay.from_estimator(FederatedPCA(1).fit(sites), sites)
    >>> drawn.sites[0]
    'south'
    """

    sites: Sequence[str]
    degrees: Array

    @classmethod
    def from_estimator(
        cls, fitted: FederatedPCA, X: Any, *, ax: Any = None, **options: Any
    ) -> Self:
        """Ask the sites, as `fedpca.diagnose` does with these options, and draw the angles."""
        return cls.from_diagnosis(diagnose(fitted, X, **options), ax=ax)

    @classmethod
    def from_diagnosis(cls, diagnosis: Diagnosis, *, ax: Any = None) -> Self:
        """Draw the angles in a diagnosis."""
        sites = shown_sites(diagnosis).sites
        sines = {name: min(1.0, site.angle_without) for name, site in sites.items()}
        names = sorted(sines, key=lambda name: -sines[name])
        return cls(names, np.degrees(np.arcsin([sines[name] for name in names]))).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw a bar for each site."""
        ax = new_axes(ax, (6.0, 0.9 + 0.28 * len(self.sites)))
        positions = np.arange(len(self.sites))[::-1]
        ax.barh(positions, self.degrees, color=BLUE)
        ax.set_yticks(positions, [name_in_plot(site) for site in self.sites])
        ax.set(xlabel="degrees by which the components move without the site")
        return self._keep(ax)


def shown_sites(diagnosis: Diagnosis) -> SiteMap:
    """Return the map of sites, or raise an error that says why there is none."""
    if diagnosis.sites is None:
        raise InputError(f"there is no map of sites to draw: {diagnosis.why_no_sites}")
    return diagnosis.sites
