"""Draw sites and features on two components.

Scores of single rows appear only where the caller passes rows of their own. For a site whose rows are
elsewhere, its summary is enough to draw the ellipse in which most of its rows would lie if they were
normally distributed:

    center = W'(m_i - m),   shape = W' S_i W,   W = the two components, divided by the scale
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.estimators import PersonalizedPCA
from fedpca.report.contents import Fitted, described_components, feature_names
from fedpca.report.drawing import COLORS, DASHES, GRAY, MARKERS, Drawn, label, new_axes
from fedpca.summary.summary import Summary

MAX_BIPLOT_ROWS = 20_000  # rows in a biplot
YOURS = "your rows"
MIN_ELLIPSE_ROWS = 3  # rows that a site needs for an ellipse
ELLIPSE_SHARE = 0.95  # share of a site's rows in its ellipse, if they are normally distributed
MAX_LEGEND_GROUPS = 12  # groups that a legend can name
LETTER, LINE = 0.032, 0.075  # width of a letter and height of a line, as shares of the plot's reach


class Ellipse(NamedTuple):
    """Where a site's rows lie on two components."""

    mean: Array  # (2,)
    covariance: Array  # (2, 2)

    def points(self) -> Array:
        """Return points on the edge of the ellipse, ``(2, m)``."""
        values, vectors = np.linalg.eigh(self.covariance)
        radius = np.sqrt(-2 * np.log(1 - ELLIPSE_SHARE) * np.maximum(values, 0.0))
        angles = np.linspace(0, 2 * np.pi, 100)
        circle = np.stack([np.cos(angles), np.sin(angles)])
        return np.asarray(self.mean[:, None] + vectors @ (radius[:, None] * circle))


@dataclass
class BiplotDisplay(Drawn):
    """Features on two components, together with sites or with the caller's own rows.

    Parameters
    ----------
    scores : ndarray of shape (n, 2)
        The scores of the rows.
    groups : ndarray of str, shape (n,)
        The group of each row.
    features : list of str
        The features to draw as arrows.
    arrows : ndarray of shape (len(features), 2)
        The ends of these features' arrows.
    labels : tuple of str
        The labels of both axes.
    ellipses : dict of str to Ellipse
        Where the rows of each site lie, for sites whose single rows are not drawn.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA, Summary
    >>> from fedpca.report import BiplotDisplay
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> pca = FederatedPCA(3).fit({"north": rows[:50], "south": rows[50:]})
    >>> drawn = BiplotDisplay.from_estimator(pca, rows[:50], sites={"south": Summary.of(rows[50:])})
    >>> drawn.scores.shape
    (50, 2)
    """

    scores: Array
    groups: Array
    features: Sequence[str]
    arrows: Array
    labels: tuple[str, str]
    ellipses: Mapping[str, Ellipse] = field(default_factory=dict)

    @classmethod
    def from_estimator(
        cls,
        fitted: Fitted | Summary,
        X: Any = None,
        *,
        sites: Mapping[str, Summary] | None = None,
        components: tuple[int, int] = (0, 1),
        groups: Any = None,
        n_features: int = 8,
        ax: Any = None,
    ) -> Self:
        """Draw rows, sites, and the features with the longest arrows, on two components.

        ``groups`` has a label for each row of ``X``, such as its site. ``sites`` has summaries of sites
        by name; each becomes an ellipse. A feature's arrow points to where rows with a large value of
        this feature lie. The arrow's length tells how well the two components explain the feature; all
        arrows are enlarged by the same factor to fill the plot.
        """
        if isinstance(fitted, Summary):
            raise InputError("a summary has no scores of rows; merge it into a model first")
        if X is None and not sites:
            raise InputError(
                "a biplot needs rows of your own or summaries of sites; pass X, sites, or both"
            )
        named = described_components(fitted.facts())
        scores = np.empty((0, len(named))) if X is None else np.asarray(fitted.transform(X))
        n_scores = scores.shape[1]
        if max(components) >= n_scores or min(components) < 0 or len(set(components)) < 2:
            raise InputError(
                f"components={components} must be two different components out of {n_scores}, counted "
                "from 0"
            )
        chosen = list(components)
        spread = np.sqrt([named[c].variance for c in chosen])
        arrows = np.stack([named[c].loadings.array for c in chosen], axis=1) * spread
        order = np.argsort(-np.linalg.norm(arrows, axis=1), kind="stable")[:n_features]
        names = feature_names(fitted)
        labels = [
            f"component {named[c].component} ({named[c].share:.1%} of variance)" for c in chosen
        ]
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
            {name: ellipse_of(fitted, each, chosen, name) for name, each in (sites or {}).items()},
        ).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw points, ellipses around groups and sites, and arrows with their names."""
        ax = new_axes(ax, (6.5, 6.0))
        names = list(np.unique(self.groups))
        for number, name in enumerate(names):
            rows = self.scores[self.groups == name]
            color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
            shown = rows[:: max(1, len(self.scores) // MAX_BIPLOT_ROWS)]
            look = {"color": color, "marker": marker, "s": 12, "alpha": 0.5, "linewidths": 0}
            words = label(name) or (YOURS if self.ellipses else None)
            ax.scatter(*shown.T, label=words, rasterized=True, **look)
            if len(names) > 1 and len(rows) >= MIN_ELLIPSE_ROWS:
                ax.plot(*Ellipse(rows.mean(axis=0), np.cov(rows.T)).points(), color=color, lw=1.2)
        for number, (name, ellipse) in enumerate(self.ellipses.items(), start=len(names)):
            color, dashes = COLORS[number % len(COLORS)], DASHES[number % len(DASHES)]
            ax.plot(*ellipse.points(), color=color, linestyle=dashes, lw=1.6, label=label(name))
            ax.plot(*ellipse.mean, color=color, marker=MARKERS[number % len(MARKERS)])
        self._draw_features(ax)
        ax.set(xlabel=self.labels[0], ylabel=self.labels[1])
        if 1 < len(names) + len(self.ellipses) <= MAX_LEGEND_GROUPS:
            ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        return self._keep(ax)

    def _draw_features(self, ax: Any) -> None:
        """Draw an arrow for each feature, and write its name where it covers no other name."""
        edges = [ellipse.points().T for ellipse in self.ellipses.values()]
        reach = np.abs(np.concatenate([self.scores, *edges])).max(initial=1e-300)
        longest = np.abs(self.arrows).max(initial=1e-300)
        ends = self.arrows * (0.8 * reach / longest)
        names = [label(name) for name in self.features]
        widths = np.array([LETTER * reach * (len(name) + 1) for name in names])
        places = apart(ends, widths, LINE * reach)
        for end, where, name in zip(ends, places, names, strict=True):
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


def ellipse_of(fitted: Fitted, summary: Summary, chosen: Sequence[int], name: str) -> Ellipse:
    """Return where the rows of a summary lie on two components of a model."""
    if isinstance(fitted, PersonalizedPCA):
        raise InputError(
            "a personalized model centers each site on its own mean, so sites have no common biplot; "
            "pass only X"
        )
    features = feature_names(fitted)
    if feature_names(summary) != features:
        raise InputError(
            f"the summary of {name!r} must have the model's features, in the same order; summarize the "
            "columns of the fit, in their order"
        )
    if summary.n < MIN_ELLIPSE_ROWS:
        raise InputError(
            f"the summary of {name!r} has {summary.n:g} rows, but an ellipse needs at least "
            f"{MIN_ELLIPSE_ROWS}; omit this site"
        )
    W = (fitted.components_[list(chosen)] / fitted.scale_).T
    spread = np.sqrt(summary.eigenvalues)[:, None] * (summary.directions @ W)
    covariance = spread.T @ spread / (summary.n - 1)
    return Ellipse((summary.mean - fitted.mean_) @ W, covariance)


def apart(points: Array, widths: Array, height: float, steps: int = 200) -> Array:
    """Return places near the points, ``(m, 2)``, where labels of these widths do not overlap.

    Labels that overlap move up and down, away from each other, until no labels overlap.
    """
    places = points + np.stack([np.sign(points[:, 0]) * widths / 2, np.zeros(len(points))], axis=1)
    order = np.arange(len(points))
    upward = np.where(np.less.outer(order, order), -1.0, 1.0)  # tells apart labels at equal height
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
