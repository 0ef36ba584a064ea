"""Draw what a model found, as scikit-learn's Displays do.

For example, ``ScreeDisplay.from_estimator(model)`` computes the numbers of a plot, and draws the plot.
A display keeps its numbers as attributes, its axes as ``ax_``, and its figure as ``figure_``. The
method ``plot`` draws the plot again. All displays need the extra ``plot``. Single rows appear only
where the caller passes rows of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.estimators import StreamingPCA
from fedpca.estimators.diagnosis import Diagnosis
from fedpca.facts import Records, Section, Sections, find
from fedpca.linalg.rank_rules import RankComparison
from fedpca.report.contents import Fitted, described_components, run_of
from fedpca.report.drawing import (
    AT_RIGHT_EDGE,
    BLUE,
    GRAY,
    HATCHES,
    ORANGE,
    Drawn,
    divided,
    in_units,
    label,
    mark_ranks,
    new_axes,
)
from fedpca.summary.summary import Summary

OF_VARIANCE = "share of the site's variance"
OF_ENTRIES = "share of outliers among the site's entries"
SITE_SHARES = ("site_variance", "site_variance_ratio", "sparse_share")  # what models know of sites
PARTS = ("shared", "local", "explained", "outliers")  # the columns that are drawn
MAX_SCREE_COMPONENTS = 40  # components in a scree plot


@dataclass
class ScreeDisplay(Drawn):
    """The share of variance that each component explains, and the cumulative share.

    Parameters
    ----------
    names : list of str
        The name of each component.
    shares : ndarray of shape (k,)
        The share of the total variance that each component explains.
    noise_share : float, optional
        The average share of the variance along a direction outside the components.
    n_certain : int, optional
        The number of components that are certain, if not all are.
    ranks : RankComparison, optional
        How many components each rule finds. The plot marks these numbers.
    n_kept : int, optional
        The number of components in the model, if the plot also shows others.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.report import ScreeDisplay
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> pca = FederatedPCA(3).fit({"north": rows[:50], "south": rows[50:]})
    >>> drawn = ScreeDisplay.from_estimator(pca)
    >>> drawn.shares.round(2)
    array([0.58, 0.28, 0.05])
    """

    names: Sequence[str]
    shares: Array
    noise_share: float | None = None
    n_certain: int | None = None
    ranks: RankComparison | None = None
    n_kept: int | None = None

    @classmethod
    def from_estimator(
        cls, fitted: Fitted | Summary, *, diagnosis: Diagnosis | None = None, ax: Any = None
    ) -> Self:
        """Draw the components of a fitted estimator or a summary.

        With the `Diagnosis` of a `FederatedPCA`, the plot also shows the variances beyond the model's
        components, and how many components each rank rule finds.
        """
        if diagnosis is not None:
            most = min(
                MAX_SCREE_COMPONENTS,
                max([2 * len(diagnosis.model.components_), *diagnosis.ranks.ranks.values()]) + 2,
            )
            shares = diagnosis.variances[:most] / (diagnosis.total_variance or 1.0)
            names = [str(i) for i in range(1, len(shares) + 1)]
            n_kept = len(diagnosis.model.components_)
            return cls(names, shares, ranks=diagnosis.ranks, n_kept=n_kept).plot(ax)
        facts, run = fitted.facts(), run_of(fitted)
        components = [c for c in described_components(facts) if c.site is None][
            :MAX_SCREE_COMPONENTS
        ]
        about = find(facts, "", Section) or Section("", ())
        noise = next((fact.value for fact in about.facts if fact.key == "noise_share"), None)
        is_partly_certain = bool(run.stop_reason == "uncertain" or run.privacy)
        return cls(
            [c.component for c in components],
            np.array([c.share for c in components]),
            noise,
            run.n_certain if is_partly_certain else None,
        ).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw bars for the components and a line for their cumulative share."""
        ax = new_axes(ax)
        positions = np.arange(1, len(self.shares) + 1)
        k = len(positions) if self.n_kept is None else self.n_kept
        ax.bar(positions[:k], self.shares[:k], color=BLUE, label="this component")
        if k < len(positions):
            style = {"color": "white", "edgecolor": BLUE, "hatch": "//"}
            ax.bar(positions[k:], self.shares[k:], label="not in the model", **style)
        ax.plot(
            positions,
            np.cumsum(self.shares),
            color=ORANGE,
            marker="o",
            markersize=4,
            label="all up to this one",
        )
        if self.noise_share is not None:
            ax.axhline(
                self.noise_share, color=GRAY, linestyle="--", label="average direction outside"
            )
        if self.n_certain is not None and self.n_certain < len(self.shares):
            ax.axvline(self.n_certain + 0.5, color=GRAY, linestyle=":", label="certain up to here")
        few = len(positions) <= 20
        ax.set_xticks(positions if few else positions[::5])
        if few:
            ax.set_xticklabels([label(name) for name in self.names])
        ax.set(xlabel="component", ylabel="share of variance", ylim=(0, 1.02))
        if self.ranks is not None:
            shown = {name: k for name, k in self.ranks.ranks.items() if k <= len(positions)}
            median = self.ranks.consensus
            is_shown = median is not None and median <= len(positions)
            mark_ranks(ax, shown, median if is_shown else None)
        ax.legend(frameon=False, fontsize=8)
        return self._keep(ax)


@dataclass
class LoadingsDisplay(Drawn):
    """The features with the largest loadings on a component.

    Parameters
    ----------
    component : str
        The name of the component.
    features : list of str
        The features, in descending order of the sizes of their loadings.
    loadings : ndarray of shape (len(features),)
        The loadings of these features.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.report import LoadingsDisplay
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> pca = FederatedPCA(3).fit({"north": rows[:50], "south": rows[50:]})
    >>> drawn = LoadingsDisplay.from_estimator(pca, 0)
    >>> drawn.features[:2]
    ['column 0', 'column 1']
    """

    component: str
    features: Sequence[str]
    loadings: Array

    @classmethod
    def from_estimator(
        cls,
        fitted: Fitted | Summary,
        component: int = 0,
        *,
        n_features: int = 15,
        ax: Any = None,
    ) -> Self:
        """Draw the loadings on one component, counted from 0 as in ``components_``."""
        components = described_components(fitted.facts())
        if not 0 <= component < len(components):
            raise InputError(
                f"component={component} is not one of the {len(components)} components; use a number "
                f"from 0 to {len(components) - 1}"
            )
        chosen = components[component]
        leading = chosen.loadings.leading(n_features)
        return cls(chosen.title, list(leading), np.array(list(leading.values()))).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw a bar for each feature; its side and its hatching show the sign of the loading."""
        ax = new_axes(ax, (6.0, 0.8 + 0.26 * len(self.features)))
        positions = np.arange(len(self.features))[::-1]
        for sign, color, hatch in ((1, BLUE, ""), (-1, ORANGE, "//")):
            chosen = np.sign(self.loadings) == sign
            ax.barh(
                positions[chosen],
                self.loadings[chosen],
                color=color,
                hatch=hatch,
                edgecolor="white",
            )
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set_yticks(positions, [label(name) for name in self.features])
        ax.set(xlabel=f"loading on component {label(self.component)}")
        return self._keep(ax)


@dataclass
class ConvergenceDisplay(Drawn):
    """The residual after each round, and the bytes exchanged in the round.

    Parameters
    ----------
    rounds : ndarray of int, shape (n_rounds,)
        The number of each round.
    residuals : ndarray of shape (n_rounds,)
        The residual that the solver reported after the round, or NaN.
    bytes_up, bytes_down : ndarray of int, shape (n_rounds,)
        The bytes that all sites together sent and received in each round.
    tol : float
        The residual at which the solver stops, or 0 if it is not known.

    Attributes
    ----------
    bytes_ax_ : Axes
        The axes for the bytes. ``ax_`` shows the residuals; without residuals, both are the same axes.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.report import ConvergenceDisplay
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> pca = FederatedPCA(3).fit({"north": rows[:50], "south": rows[50:]})
    >>> drawn = ConvergenceDisplay.from_estimator(pca)
    >>> drawn.rounds
    array([1, 2, 3, 4])
    """

    rounds: Array
    residuals: Array
    bytes_up: Array
    bytes_down: Array
    tol: float = 0.0
    bytes_ax_: Any = field(init=False, default=None)

    @classmethod
    def from_estimator(cls, fitted: Fitted | Summary, *, ax: Any = None) -> Self:
        """Draw the rounds of the run that fitted an estimator."""
        history = run_of(fitted).history
        if not history:
            raise InputError(
                "this model has no record of a run, so there are no rounds to draw; use a model that "
                "fedpca fit wrote"
            )
        return cls(
            np.array([entry["round"] for entry in history]),
            np.array([entry.get("residual") or np.nan for entry in history], float),
            np.array([entry["bytes_up"] for entry in history]),
            np.array([entry["bytes_down"] for entry in history]),
            0.0 if isinstance(fitted, Summary | StreamingPCA) else float(fitted.tol),
        ).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw residuals, if there are any, above bars for the bytes of each round.

        If you pass ``ax``, the axes are divided, so they must be part of a grid, like those that
        `pyplot.subplots` returns.
        """
        ax = new_axes(ax, (6.0, 4.6))
        known = np.isfinite(self.residuals)
        lower = ax
        if known.any():
            ax, lower = divided(ax, (3, 2))
            ax.plot(self.rounds[known], self.residuals[known], color=BLUE, marker="o", markersize=4)
            ax.set(yscale="log", ylabel="residual")
            if 0 < self.tol < 1:
                ax.axhline(self.tol, color=GRAY, linestyle="--")
                ax.annotate("stops here", (1, self.tol), (0, 2), **AT_RIGHT_EDGE)
            ax.tick_params(labelbottom=False)
            ax.sharex(lower)
        amounts, unit = in_units(np.stack([self.bytes_up, self.bytes_down]))
        lower.bar(self.rounds, amounts[0], color=BLUE, label="from the sites")
        lower.bar(
            self.rounds,
            amounts[1],
            bottom=amounts[0],
            color=ORANGE,
            hatch="//",
            edgecolor="white",
            linewidth=0,
            label="to the sites",
        )
        lower.set(xlabel="round", ylabel=f"{unit} in the round")
        lower.xaxis.get_major_locator().set_params(integer=True)
        lower.margins(y=0.3)
        lower.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")
        self.bytes_ax_ = lower
        return self._keep(ax)


@dataclass
class SiteSharesDisplay(Drawn):
    """The share of each site's variance that components explain.

    For a `PersonalizedPCA`, shared and local components have separate shares. For a `RobustPCA`, the
    display shows the share of each site's entries that are outliers.

    Parameters
    ----------
    sites : list of str
        The names of the sites.
    parts : dict of str to ndarray of shape (n_sites,)
        The share of each part at each site.
    of : str
        What the shares refer to, such as "share of the site's variance".

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.report import SiteSharesDisplay
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> pca = FederatedPCA(3).fit({"north": rows[:50], "south": rows[50:]})
    >>> drawn = SiteSharesDisplay.from_estimator(pca)
    >>> drawn.sites
    ['north', 'south']
    """

    sites: Sequence[str]
    parts: dict[str, Array] = field(default_factory=dict)
    of: str = OF_VARIANCE

    @classmethod
    def from_estimator(cls, fitted: Fitted | Summary, *, ax: Any = None) -> Self:
        """Draw the shares that a fitted estimator has for its sites."""
        shares = site_share_records(fitted.facts())
        if shares is None:
            raise InputError(
                "this model does not have shares for its sites: the sites did not reveal them, or the "
                "rows did not come from sites"
            )
        parts = [c for c in shares.columns if c.key in PARTS]
        columns = shares.only("site", *(c.key for c in parts)).rows
        values = np.array([row[1:] for row in columns], float).T
        of = OF_ENTRIES if shares.key == "sparse_share" else OF_VARIANCE
        named = {c.words: own for c, own in zip(parts, values, strict=True)}
        return cls([row[0] for row in columns], named, of).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw a bar for each site, with its parts stacked."""
        ax = new_axes(ax, (6.0, 1.0 + 0.3 * len(self.sites)))
        positions = np.arange(len(self.sites))[::-1]
        left = np.zeros(len(self.sites))
        looks = zip((BLUE, ORANGE), HATCHES, strict=False)
        for (name, shares), (color, hatch) in zip(self.parts.items(), looks, strict=False):
            ax.barh(
                positions,
                shares,
                left=left,
                color=color,
                hatch=hatch,
                edgecolor="white",
                label=name,
            )
            left += shares
        ax.set_yticks(positions, [label(site) for site in self.sites])
        ax.set(xlabel=self.of)
        if self.of == OF_VARIANCE:
            ax.set(xlim=(0, 1))
        if len(self.parts) > 1:
            ax.legend(
                frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2
            )
        return self._keep(ax)


def site_share_records(facts: Sections) -> Records | None:
    """Return what a model knows about the rows of each site, or None if it knows nothing."""
    known = (find(facts, key, Records) for key in SITE_SHARES)
    return next((shares for shares in known if shares is not None and shares.rows), None)
