"""Draw what a model found, as scikit-learn's Displays do.

``ScreeDisplay.from_estimator(model)`` computes what is drawn and draws it. A display keeps its numbers
as attributes, its axes as ``ax_``, and its figure as ``figure_``; ``plot`` draws again. All of them
need the extra ``plot``. Single rows appear only where the caller passes rows of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.record import RunRecord
from fedpca.errors import InputError
from fedpca.estimators import PersonalizedPCA
from fedpca.estimators.diagnosis import Diagnosis
from fedpca.linalg.rank_rules import RankComparison
from fedpca.report.contents import Fitted, components_of, feature_names
from fedpca.report.drawing import (
    BLUE,
    COLORS,
    GRAY,
    HATCHES,
    MARKERS,
    ORANGE,
    mark_ranks,
    new_axes,
)
from fedpca.summary.summary import Summary

MAX_BARS = 40  # components in a scree plot
MAX_POINTS = 20_000  # rows of a biplot
ELLIPSE_SHARE = 0.95  # of a site's rows, if they were normally distributed


class Drawn:
    """What all displays have in common once they are drawn."""

    ax_: Any
    figure_: Any

    def _keep(self, ax: Any) -> Self:
        self.ax_, self.figure_ = ax, ax.figure
        return self


@dataclass
class ScreeDisplay(Drawn):
    """The share of variance that each component explains, and that all up to it explain.

    Parameters
    ----------
    names : list of str
        The name of each component.
    shares : ndarray of shape (k,)
        The share of the total variance that each one explains.
    noise_share : float, optional
        The average share of a direction outside the components.
    n_certain : int, optional
        The number of components that the run vouches for, if not all.
    ranks : RankComparison, optional
        How many components each rule finds, which are marked.
    n_kept : int, optional
        The number of components that the model has, if more are drawn.

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

        With the `Diagnosis` of a `FederatedPCA`, the variances beyond its components are drawn too, and
        what each rank rule says.
        """
        if diagnosis is not None:
            most = min(
                MAX_BARS,
                max([2 * len(diagnosis.model.components_), *diagnosis.ranks.ranks.values()]) + 2,
            )
            shares = diagnosis.variances[:most] / (diagnosis.total_variance or 1.0)
            names = [str(i) for i in range(1, len(shares) + 1)]
            n_kept = len(diagnosis.model.components_)
            return cls(names, shares, ranks=diagnosis.ranks, n_kept=n_kept).plot(ax)
        components = [c for c in components_of(fitted) if c.site is None][:MAX_BARS]
        shares = np.array([c.share for c in components])
        noise = getattr(fitted, "noise_variance_", None)
        total = getattr(fitted, "total_variance_", None)
        run: RunRecord = getattr(fitted, "run_", RunRecord())
        is_partly_certain = bool(run.stop_reason == "uncertain" or run.privacy)
        return cls(
            [c.name for c in components],
            shares,
            float(noise / total) if noise and total else None,
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
            ax.set_xticklabels(self.names)
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
        The features, the one with the largest loading first.
    loadings : ndarray of shape (len(features),)
        Their loadings.

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
        components = components_of(fitted)
        if not 0 <= component < len(components):
            raise InputError(
                f"component={component} is not one of the {len(components)} components; they count "
                "from 0"
            )
        chosen, names = components[component], feature_names(fitted)
        order = np.argsort(-np.abs(chosen.loadings), kind="stable")[:n_features]
        label = chosen.name if chosen.site is None else f"{chosen.name} of {chosen.site}"
        return cls(label, [names[j] for j in order], chosen.loadings[order]).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw a bar for each feature; the sign shows in its side and its hatching."""
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
        ax.set_yticks(positions, self.features)
        ax.set(xlabel=f"loading on component {self.component}")
        return self._keep(ax)


@dataclass
class ConvergenceDisplay(Drawn):
    """The residual after each round, and the bytes that crossed up to it.

    Parameters
    ----------
    rounds : ndarray of int, shape (n_rounds,)
        The number of each round.
    residuals : ndarray of shape (n_rounds,)
        The residual that the solver reported after the round, or NaN.
    megabytes : ndarray of shape (n_rounds,)
        The data exchanged with all sites up to the round.

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
    megabytes: Array

    @classmethod
    def from_estimator(cls, fitted: Fitted | Summary, *, ax: Any = None) -> Self:
        """Draw the rounds of the run that fitted an estimator."""
        history = getattr(fitted, "run_", RunRecord()).history
        if not history:
            raise InputError("this model has no record of a run, so there are no rounds to draw")
        crossed = [entry["bytes_up"] + entry["bytes_down"] for entry in history]
        return cls(
            np.array([entry["round"] for entry in history]),
            np.array([entry.get("residual") or np.nan for entry in history], float),
            np.cumsum(crossed) / 1e6,
        ).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw residuals on the left axis, if there are any, and megabytes on the right one."""
        ax = new_axes(ax)
        ax.set(xlabel="round")
        has_residuals = bool(np.isfinite(self.residuals).any())
        right = ax.twinx() if has_residuals else ax
        right.plot(
            self.rounds, self.megabytes, color=ORANGE, linestyle="--", label="data exchanged"
        )
        right.set(ylabel="data exchanged, MB", ylim=(0, None))
        drawn = [right]
        if has_residuals:
            known = np.isfinite(self.residuals)
            ax.plot(
                self.rounds[known],
                self.residuals[known],
                color=BLUE,
                marker="o",
                markersize=4,
                label="residual",
            )
            ax.set(yscale="log", ylabel="residual")
            right.spines[["top", "left"]].set_visible(False)
            drawn = [ax, right]
        lines = [line for each in drawn for line in each.get_lines()]
        ax.legend(lines, [line.get_label() for line in lines], frameon=False, fontsize=8)
        return self._keep(ax)


@dataclass
class SiteSharesDisplay(Drawn):
    """How much of each site's variance is explained: by shared and local components, or by all.

    Parameters
    ----------
    sites : list of str
        The names of the sites.
    parts : dict of str to ndarray of shape (n_sites,)
        The shares of each part.

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

    @classmethod
    def from_estimator(cls, fitted: Fitted | Summary, *, ax: Any = None) -> Self:
        """Draw the shares that a fitted estimator knows of its sites."""
        if isinstance(fitted, PersonalizedPCA):
            shares = fitted.site_variance_
            parts = {p: np.array([s[p] for s in shares.values()]) for p in ("shared", "local")}
        else:
            shares = getattr(fitted, "site_variance_ratio_", {})
            parts = {"explained": np.array(list(shares.values()))}
        if not shares:
            raise InputError(
                "this model does not say how much of each site's variance it explains; the sites did "
                "not show it, or rows came from no sites"
            )
        return cls(list(shares), parts).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw a bar for each site, whose parts are stacked."""
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
        ax.set_yticks(positions, self.sites)
        ax.set(xlabel="share of the site's variance", xlim=(0, 1))
        if len(self.parts) > 1:
            ax.legend(
                frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2
            )
        return self._keep(ax)


@dataclass
class BiplotDisplay(Drawn):
    """Rows and features on two components; the rows must be the caller's own.

    Parameters
    ----------
    scores : ndarray of shape (n, 2)
        The scores of the rows.
    groups : ndarray of str, shape (n,)
        The group of each row.
    features : list of str
        The features to draw as arrows.
    arrows : ndarray of shape (len(features), 2)
        Where their arrows end.
    labels : tuple of str
        The labels of both axes.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.report import BiplotDisplay
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> pca = FederatedPCA(3).fit({"north": rows[:50], "south": rows[50:]})
    >>> drawn = BiplotDisplay.from_estimator(pca, rows)
    >>> drawn.scores.shape
    (90, 2)
    """

    scores: Array
    groups: Array
    features: Sequence[str]
    arrows: Array
    labels: tuple[str, str]

    @classmethod
    def from_estimator(
        cls,
        fitted: Fitted | Summary,
        X: Any,
        *,
        components: tuple[int, int] = (0, 1),
        groups: Any = None,
        n_features: int = 8,
        ax: Any = None,
    ) -> Self:
        """Draw rows, and the features with the longest arrows, on two components.

        ``groups`` has a label for each row, such as its site. A feature's arrow points to where rows
        with a large value lie. Its length tells how well the two components explain the feature; all
        arrows are enlarged together, so that they fill the plot.
        """
        if isinstance(fitted, Summary):
            raise InputError("a summary has no scores of rows; merge it into a model first")
        scores = np.asarray(fitted.transform(X))
        if max(components) >= scores.shape[1] or min(components) < 0 or len(set(components)) < 2:
            raise InputError(
                f"components={components} must be two of the {scores.shape[1]} components, which count "
                "from 0"
            )
        chosen = list(components)
        named = components_of(fitted)
        spread = np.sqrt([named[c].variance for c in chosen])
        arrows = np.stack([named[c].loadings for c in chosen], axis=1) * spread
        order = np.argsort(-np.linalg.norm(arrows, axis=1), kind="stable")[:n_features]
        names = feature_names(fitted)
        labels = [f"component {named[c].name} ({named[c].share:.1%} of variance)" for c in chosen]
        where = np.zeros(len(scores), "<U1") if groups is None else np.asarray(groups).astype(str)
        if len(where) != len(scores):
            raise InputError(
                f"groups has {len(where)} labels; pass one for each of the {len(scores)} rows"
            )
        return cls(
            scores[:, chosen],
            where,
            [names[j] for j in order],
            arrows[order],
            (labels[0], labels[1]),
        ).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw points, ellipses around groups if there are several, and arrows with their names."""
        ax = new_axes(ax, (6.5, 6.0))
        names = np.unique(self.groups)
        for number, name in enumerate(names):
            rows = self.scores[self.groups == name]
            color = COLORS[number % len(COLORS)]
            shown = rows[:: max(1, len(self.scores) // MAX_POINTS)]
            marker = MARKERS[number % len(MARKERS)]
            look = {"color": color, "marker": marker, "s": 9, "alpha": 0.5, "linewidths": 0}
            ax.scatter(*shown.T, label=name or None, rasterized=True, **look)
            if len(names) > 1 and len(rows) > 2:
                ax.plot(*_ellipse(rows), color=color, linewidth=1.2)
        reach = np.abs(self.scores).max(initial=1e-300)
        longest = np.abs(self.arrows).max(initial=1e-300)
        ends = self.arrows * (0.8 * reach / longest)
        widths = np.array([0.04 * reach * (len(name) + 1) for name in self.features])
        places = apart(ends, widths, 0.09 * reach)
        for end, where, name in zip(ends, places, self.features, strict=True):
            ax.annotate(
                "", end, (0, 0), arrowprops={"arrowstyle": "->", "color": "black", "lw": 0.9}
            )
            ax.annotate(
                name,
                end,
                where,
                fontsize=8,
                ha="center",
                va="center",
                bbox={"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.8},
                arrowprops={"arrowstyle": "-", "color": GRAY, "lw": 0.5},
            )
        ax.axhline(0, color=GRAY, linewidth=0.5)
        ax.axvline(0, color=GRAY, linewidth=0.5)
        ax.update_datalim(places + np.stack([widths, 0 * widths], axis=1) / 2)
        ax.update_datalim(places - np.stack([widths, 0 * widths], axis=1) / 2)
        ax.autoscale_view()
        ax.set(xlabel=self.labels[0], ylabel=self.labels[1])
        if len(names) > 1:
            ax.legend(frameon=False, fontsize=8)
        return self._keep(ax)


def apart(points: Array, widths: Array, height: float, steps: int = 200) -> Array:
    """Return places for labels of these widths beside points, ``(m, 2)``, where none covers another.

    Labels that overlap move up and down, away from each other, until they do not.
    """
    places = points + np.stack([np.sign(points[:, 0]) * widths / 2, np.zeros(len(points))], axis=1)
    order = np.arange(len(points))
    upward = np.where(np.less.outer(order, order), -1.0, 1.0)  # for labels of equal height
    reach = (widths[:, None] + widths) / 2
    for _ in range(steps):
        across, up = (places[:, None, axis] - places[None, :, axis] for axis in (0, 1))
        covered = np.where(np.abs(across) < reach, np.maximum(height - np.abs(up), 0.0), 0.0)
        np.fill_diagonal(covered, 0.0)
        if not covered.any():
            break
        push = (np.where(up == 0, upward, np.sign(up)) * covered).sum(axis=1)
        places[:, 1] += np.clip(push / 2, -height, height)
    return np.asarray(places)


def _ellipse(rows: Array) -> Array:
    """Return points on the ellipse that holds most rows of a normal distribution, ``(2, m)``."""
    mean, (values, vectors) = rows.mean(axis=0), np.linalg.eigh(np.cov(rows.T))
    radius = np.sqrt(-2 * np.log(1 - ELLIPSE_SHARE) * np.maximum(values, 0.0))
    angles = np.linspace(0, 2 * np.pi, 100)
    circle = np.stack([np.cos(angles), np.sin(angles)])
    return np.asarray(mean[:, None] + vectors @ (radius[:, None] * circle))
